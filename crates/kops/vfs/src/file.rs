//! A store in a directory.

use std::{
    fs::{self, File},
    io::Read as _,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use crate::{
    body,
    error::Error,
    name::{self, UNFINISHED},
    object::{LARGEST, MOST, ObjectInfo, Precondition, Secrecy, Version},
};

/// A store in a directory, which the first write creates. Callers have checked the names.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) base: PathBuf,
}

impl Directory {
    /// Returns an object and its version; `None` if it does not exist.
    pub(crate) fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        let file = match sys::read_beneath(&self.base, Path::new(name)) {
            Ok(file) => file,
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::sys("reading", name)(error)),
        };
        let mut content = Vec::new();
        let read = file.take(LARGEST as u64 + 1).read_to_end(&mut content);
        read.map_err(Error::io("reading", name))?;
        if content.len() > LARGEST {
            return Err(Error::TooMuch { name: name.to_owned(), most: LARGEST, unit: "bytes" });
        }
        let version = version(&content);
        Ok(Some((content, version)))
    }

    /// Copies an object of any size to a file with mode 0600. Returns its version; `None` if it does not exist.
    pub(crate) fn fetch(&self, name: &str, to: &Path) -> Result<Option<Version>, Error> {
        let mut from = match sys::read_beneath(&self.base, Path::new(name)) {
            Ok(file) => file,
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::sys("reading", name)(error)),
        };
        let mut copy = || {
            let mut file = fs::OpenOptions::new();
            let mut file = file.write(true).create_new(true).mode(0o600).open(to)?;
            std::io::copy(&mut from, &mut file)?;
            let (_, sum) = body::sum(to)?;
            Ok(Some(Version(format!("\"{sum}\""))))
        };
        copy().map_err(Error::io("copying", name))
    }

    /// Creates an object of any size from a file, readable by its owner only.
    pub(crate) fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        let mut from = File::open(from).map_err(Error::io("reading the file for", name))?;
        self.put_from(name, &mut from, &Precondition::Absent, Secrecy::Private)
    }

    /// Writes an object, if its version is still `since`.
    pub(crate) fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Precondition,
        secrecy: Secrecy,
    ) -> Result<Version, Error> {
        self.put_from(name, &mut &*content, since, secrecy)?;
        Ok(version(content))
    }

    fn put_from(
        &self,
        name: &str,
        content: &mut dyn std::io::Read,
        since: &Precondition,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        let failed = || Error::io("writing", name);
        sys::make_directories(&self.base, 0o755).map_err(failed())?;
        let _lock = self.lock_exclusively().map_err(failed())?;
        self.compare(name, since)?;
        let (directory, own) = name::split(name);
        sys::make_beneath(&self.base, Path::new(directory)).map_err(Error::sys("writing", name))?;
        self.replace(directory, own, content, secrecy).map_err(|e| match e {
            Error::Io { source, .. } => failed()(source),
            other => other,
        })
    }

    /// Removes an object of any version.
    pub(crate) fn discard(&self, name: &str) -> Result<(), Error> {
        let _lock = self.lock_exclusively().map_err(Error::io("removing", name))?;
        self.delete_file(name)
    }

    /// Removes an object, if its version is still `read`.
    pub(crate) fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        let _lock = self.lock_exclusively().map_err(Error::io("removing", name))?;
        self.compare(name, &Precondition::Read(read.clone()))?;
        self.delete_file(name)
    }

    fn delete_file(&self, name: &str) -> Result<(), Error> {
        let (directory, own) = name::split(name);
        let (_handle, at) = self.open_directory(directory)?;
        fs::remove_file(at.join(own)).map_err(Error::io("removing", name))?;
        // Directories exist only for their objects: remove those that are now empty, innermost first.
        let mut parent = directory;
        while !parent.is_empty() {
            let (outer, own) = name::split(parent);
            let (_handle, at) = self.open_directory(outer)?;
            if fs::remove_dir(at.join(own)).is_err() {
                break;
            }
            parent = outer;
        }
        Ok(())
    }

    /// Returns all objects below a directory (of the whole store, if it is empty), sorted by name. Symbolic links are
    /// neither followed nor listed.
    pub(crate) fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, Error> {
        let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
        while let Some(directory) = left.pop() {
            for (name, metadata) in self.read_directory(&directory)? {
                let name = match directory.as_str() {
                    "" => name,
                    directory => format!("{directory}/{name}"),
                };
                if metadata.is_dir() {
                    left.push(name);
                } else {
                    let modified =
                        metadata.modified().map_err(Error::io("checking", &name))?.into();
                    let (size, tag) = (metadata.len(), String::new());
                    found.push(ObjectInfo { name, size, modified, tag });
                }
                if found.len() + left.len() > MOST {
                    let name = directory;
                    return Err(Error::TooMuch { name, most: MOST, unit: "objects" });
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns the names directly below a directory, sorted, and whether each is a directory.
    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        let found = self.read_directory(directory)?;
        let mut names: Vec<_> =
            found.into_iter().map(|(name, metadata)| (name, metadata.is_dir())).collect();
        names.sort();
        Ok(names)
    }

    fn read_directory(&self, directory: &str) -> Result<Vec<(String, fs::Metadata)>, Error> {
        let (_handle, at) = match self.open_directory(directory) {
            Ok(held) => held,
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let failed = || Error::io("listing", directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(at).map_err(failed())?.take(MOST) {
            let entry = entry.map_err(failed())?;
            // For a symbolic link, this is the link's own metadata.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Another process has removed it since.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed()(error)),
            };
            let Ok(name) = entry.file_name().into_string() else { continue };
            if (metadata.is_file() || metadata.is_dir()) && name::check(&name).is_ok() {
                found.push((name, metadata));
            }
        }
        Ok(found)
    }

    fn compare(&self, name: &str, since: &Precondition) -> Result<(), Error> {
        since.check(name, self.read(name)?.map(|(_, version)| version).as_ref())
    }

    /// Locks out other writers while an object is compared and replaced. The lock ends when the file is closed.
    fn lock_exclusively(&self) -> std::io::Result<File> {
        let base = File::open(&self.base)?;
        base.lock()?;
        Ok(base)
    }

    /// Opens a directory and returns a path to it that no renamed or linked directory can redirect.
    fn open_directory(&self, directory: &str) -> Result<(sys::OpenPath, PathBuf), Error> {
        let held = sys::hold_beneath(&self.base, Path::new(directory))
            .map_err(Error::sys("opening", directory))?;
        let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd()).into();
        Ok((held, path))
    }

    fn replace(
        &self,
        directory: &str,
        own: &str,
        content: &mut dyn std::io::Read,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        let (_handle, at) = self.open_directory(directory)?;
        let mut write = || {
            let mut options = fs::OpenOptions::new();
            options.mode(0o600);
            let mut file = tempfile::Builder::new()
                .prefix(UNFINISHED)
                .make_in(&at, |path| options.write(true).create_new(true).open(path))?;
            std::io::copy(content, &mut file)?;
            let mode = if secrecy == Secrecy::Private { 0o600 } else { 0o644 };
            file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
            file.as_file().sync_all()?;
            file.persist(at.join(own)).map_err(|e| e.error)?;
            // Make the new name durable, too.
            File::open(&at)?.sync_all()
        };
        write().map_err(Error::io("writing", own))
    }
}

/// Returns the version of content: its SHA-256 sum.
fn version(content: &[u8]) -> Version {
    Version(format!("\"{}\"", body::sum_of(content)))
}
