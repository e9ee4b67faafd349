//! Files below the root that is being installed. Links are resolved as if it were `/` and never lead out of it.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};

use crate::error::Error;

pub(crate) struct Root {
    directory: OwnedFd,
}

/// Metadata of a file; a link at the end of the path is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileInfo {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) inode: u64,
}

impl Root {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|e| Error::file("opening the root", path)(e.into()))?;
        Ok(Self { directory })
    }

    fn resolve(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve_flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        Ok(rustix::fs::openat2(
            &self.directory,
            relative,
            flags | OFlags::CLOEXEC,
            mode,
            resolve_flags,
        )?)
    }

    /// Opens the parent directory of a path, which is created if missing, and returns the last component.
    fn parent(&self, path: &str) -> Result<(OwnedFd, String), Error> {
        let invalid =
            |reason: &str| Error::Node { path: path.to_owned(), reason: reason.to_owned() };
        let path = Path::new(path);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(invalid("a path may not lead upwards"));
        }
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| invalid("no name at its end"))?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok((self.directories(parent)?, name.to_owned()))
    }

    /// Opens a directory. Missing directories are created, owned by root with mode 0755.
    pub(crate) fn directories(&self, path: &Path) -> Result<OwnedFd, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let failed = |path: &Path| Error::file("opening directory", path.to_owned());
        let mut so_far = PathBuf::from("/");
        for part in path.components() {
            let Component::Normal(part) = part else { continue };
            let parent = so_far.clone();
            so_far.push(part);
            match self.resolve(&so_far, flags, Mode::empty()) {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&so_far)(error)),
            }
            let parent = self.resolve(&parent, flags, Mode::empty()).map_err(failed(&so_far))?;
            rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755))
                .map_err(|e| Error::file("making directory", &so_far)(e.into()))?;
            // The umask was applied.
            self.own(&parent, &part.to_string_lossy(), Some(0o755), None, None)
                .map_err(Error::file("setting the mode of", &so_far))?;
        }
        self.resolve(path, flags, Mode::empty()).map_err(failed(path))
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Option<FileInfo>, Error> {
        let at = Path::new(path);
        let parent = at.parent().unwrap_or(Path::new("/"));
        let name = at.file_name().unwrap_or(std::ffi::OsStr::new("."));
        let outcome = self
            .resolve(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .and_then(|parent| Ok(rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?));
        match outcome {
            Ok(stat) => Ok(Some(FileInfo {
                kind: FileType::from_raw_mode(stat.st_mode),
                mode: stat.st_mode & 0o7777,
                uid: stat.st_uid,
                gid: stat.st_gid,
                inode: stat.st_ino,
            })),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(Error::file("looking at", path)(error)),
        }
    }

    /// Returns the real path, with links resolved except in the last component and in missing parts.
    pub(crate) fn real(&self, path: &str) -> Result<PathBuf, Error> {
        let mut names = Vec::new();
        let mut rest = Path::new(path);
        while let (Some(parent), Some(name)) = (rest.parent(), rest.file_name()) {
            names.push(name);
            rest = parent;
            let fd = match self.resolve(rest, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(fd) => fd,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(Error::file("finding", path)(error)),
            };
            let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            let target = std::fs::read_link(&link).map_err(Error::file("finding", path))?;
            return Ok(names.iter().rev().fold(target, |target, name| target.join(name)));
        }
        Ok(PathBuf::from("/"))
    }

    /// Returns the names in a directory; none if it does not exist.
    pub(crate) fn entries(&self, path: &str) -> Result<Vec<String>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = match self.resolve(Path::new(path), flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file("listing", path)(error)),
        };
        let mut names = Vec::new();
        for entry in
            rustix::fs::Dir::new(directory).map_err(|e| Error::file("listing", path)(e.into()))?
        {
            let entry = entry.map_err(|e| Error::file("listing", path)(e.into()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    pub(crate) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut out = Vec::new();
        match self.resolve(Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => {
                File::from(file).read_to_end(&mut out).map_err(Error::file("reading", path))?;
                Ok(Some(out))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("reading", path)(error)),
        }
    }

    /// Writes a file atomically.
    pub(crate) fn write(
        &self,
        path: &str,
        contents: &[u8],
        mode: u32,
        uid: u32,
        gid: u32,
    ) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        let temporary = format!(".{name}.ignition");
        let work = || -> io::Result<()> {
            let flags = OFlags::WRONLY
                | OFlags::CREATE
                | OFlags::TRUNC
                | OFlags::NOFOLLOW
                | OFlags::CLOEXEC;
            let file =
                rustix::fs::openat(&parent, temporary.as_str(), flags, Mode::from_raw_mode(0o600))?;
            let mut file = File::from(file);
            file.write_all(contents)?;
            rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            // After the owner, because chown clears special bits.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            rustix::fs::renameat(&parent, temporary.as_str(), &parent, name.as_str())?;
            Ok(())
        };
        work().map_err(Error::file("writing", path))
    }

    pub(crate) fn make_directory(&self, path: &str) -> Result<(), Error> {
        self.directories(Path::new(path)).map(drop)
    }

    pub(crate) fn symlink(&self, path: &str, target: &str) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::symlinkat(target, &parent, name.as_str())
            .map_err(|e| Error::file("making link", path)(e.into()))
    }

    pub(crate) fn read_link(&self, path: &str) -> Result<String, Error> {
        let (parent, name) = self.parent(path)?;
        let target = rustix::fs::readlinkat(&parent, name.as_str(), Vec::new())
            .map_err(|e| Error::file("reading link", path)(e.into()))?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Creates a hard link. A link at the end of the target is not followed.
    pub(crate) fn hard_link(&self, path: &str, target: &str) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        let (from, old) = self.parent(target)?;
        rustix::fs::linkat(&from, old.as_str(), &parent, name.as_str(), AtFlags::empty())
            .map_err(|e| Error::file("linking", path)(e.into()))
    }

    /// Removes a file, or a directory with its contents.
    pub(crate) fn remove(&self, path: &str) -> Result<(), Error> {
        let Some(metadata) = self.stat(path)? else { return Ok(()) };
        let (parent, name) = self.parent(path)?;
        let outcome = match metadata.kind {
            // The parent is pinned, and `remove_dir_all` follows no links.
            FileType::Directory => {
                let fd = std::os::fd::AsRawFd::as_raw_fd(&parent);
                std::fs::remove_dir_all(format!("/proc/self/fd/{fd}/{name}"))
            }
            _ => rustix::fs::unlinkat(&parent, name.as_str(), AtFlags::empty())
                .map_err(io::Error::from),
        };
        outcome.map_err(Error::file("removing", path))
    }

    /// Sets mode and owner of a path. Links have no mode.
    pub(crate) fn set(
        &self,
        path: &str,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Error> {
        if path.trim_matches('/').is_empty() {
            let work = || -> io::Result<()> {
                let own = self.resolve(
                    Path::new("/"),
                    OFlags::RDONLY | OFlags::DIRECTORY,
                    Mode::empty(),
                )?;
                rustix::fs::fchown(&own, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
                if let Some(mode) = mode {
                    rustix::fs::fchmod(&own, Mode::from_raw_mode(mode))?;
                }
                Ok(())
            };
            return work().map_err(Error::file("setting owner and mode of", path));
        }
        let (parent, name) = self.parent(path)?;
        self.own(&parent, &name, mode, uid, gid)
            .map_err(Error::file("setting owner and mode of", path))
    }

    fn own(
        &self,
        parent: &OwnedFd,
        name: &str,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        if uid.is_some() || gid.is_some() {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = mode {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        Ok(())
    }

    /// Returns the path in the running system, for programs such as mount.
    pub(crate) fn outside(&self, path: &str) -> Result<PathBuf, Error> {
        let fd = self.directories(Path::new(path))?;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        std::fs::read_link(&link).map_err(Error::file("finding", path))
    }
}
