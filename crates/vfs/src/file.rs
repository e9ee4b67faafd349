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
    Error, LARGEST, Listed, MOST, Secrecy, Since, Version, body,
    name::{self, UNFINISHED},
};

/// A store in a directory, which is made by the first write. Names have been looked at.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) base: PathBuf,
}

impl Directory {
    /// An object and its version; nothing if there is none.
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

    /// Copies an object, however large it is, into a file, which is the caller's alone. Says whether there is one.
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

    /// Writes a new object, however large it is, from a file. It is for its owner alone.
    pub(crate) fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        let mut from = File::open(from).map_err(Error::io("reading what is to be", name))?;
        self.put_from(name, &mut from, &Since::Absent, Secrecy::Private)
    }

    /// Writes an object, if it still is what the writer made it from.
    pub(crate) fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Since,
        secrecy: Secrecy,
    ) -> Result<Version, Error> {
        self.put_from(name, &mut &*content, since, secrecy)?;
        Ok(version(content))
    }

    fn put_from(
        &self,
        name: &str,
        content: &mut dyn std::io::Read,
        since: &Since,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        let failed = || Error::io("writing", name);
        sys::make_directories(&self.base, 0o755).map_err(failed())?;
        let _alone = self.alone().map_err(failed())?;
        self.compare(name, since)?;
        let (directory, own) = name::split(name);
        sys::make_beneath(&self.base, Path::new(directory)).map_err(Error::sys("writing", name))?;
        self.replace(directory, own, content, secrecy).map_err(|e| match e {
            Error::Io { source, .. } => failed()(source),
            other => other,
        })
    }

    /// Removes an object whatever it is by now.
    pub(crate) fn discard(&self, name: &str) -> Result<(), Error> {
        let _alone = self.alone().map_err(Error::io("removing", name))?;
        self.take_away(name)
    }

    /// Removes an object, if it still is what was read.
    pub(crate) fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        let _alone = self.alone().map_err(Error::io("removing", name))?;
        self.compare(name, &Since::Read(read.clone()))?;
        self.take_away(name)
    }

    fn take_away(&self, name: &str) -> Result<(), Error> {
        let (directory, own) = name::split(name);
        let (_held, at) = self.hold(directory)?;
        fs::remove_file(at.join(own)).map_err(Error::io("removing", name))?;
        // Directories have no meaning of their own: one that is empty now goes too, and so do those around it.
        let mut around = directory;
        while !around.is_empty() {
            let (outer, own) = name::split(around);
            let (_held, at) = self.hold(outer)?;
            if fs::remove_dir(at.join(own)).is_err() {
                break;
            }
            around = outer;
        }
        Ok(())
    }

    /// All objects below a directory (of the whole store, if it is empty), sorted by name. Links are not followed, and are
    /// no objects.
    pub(crate) fn list(&self, directory: &str) -> Result<Vec<Listed>, Error> {
        let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
        while let Some(directory) = left.pop() {
            for (name, metadata) in self.look(&directory)? {
                let name = match directory.as_str() {
                    "" => name,
                    directory => format!("{directory}/{name}"),
                };
                if metadata.is_dir() {
                    left.push(name);
                } else {
                    let modified =
                        metadata.modified().map_err(Error::io("looking at", &name))?.into();
                    found.push(Listed { name, size: metadata.len(), modified });
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

    /// The names right below a directory, sorted, and whether each is a directory.
    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        let found = self.look(directory)?;
        let mut names: Vec<_> =
            found.into_iter().map(|(name, metadata)| (name, metadata.is_dir())).collect();
        names.sort();
        Ok(names)
    }

    fn look(&self, directory: &str) -> Result<Vec<(String, fs::Metadata)>, Error> {
        let (_held, at) = match self.hold(directory) {
            Ok(held) => held,
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let failed = || Error::io("listing", directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(at).map_err(failed())?.take(MOST) {
            let entry = entry.map_err(failed())?;
            // Of a link it is the link's own.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Somebody has removed it since.
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

    fn compare(&self, name: &str, since: &Since) -> Result<(), Error> {
        let there = self.read(name)?.map(|(_, version)| version);
        let as_expected = match since {
            Since::Absent => there.is_none(),
            Since::Read(version) => there.as_ref() == Some(version),
        };
        if as_expected { Ok(()) } else { Err(Error::Conflict { name: name.to_owned() }) }
    }

    /// Holds off other writers while an object is compared and replaced; the kernel lets go when the file is closed.
    fn alone(&self) -> std::io::Result<File> {
        let base = File::open(&self.base)?;
        base.lock()?;
        Ok(base)
    }

    /// A directory that is held open, and a path to it that nobody can lead elsewhere.
    fn hold(&self, directory: &str) -> Result<(sys::Held, PathBuf), Error> {
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
        let (_held, at) = self.hold(directory)?;
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
            // The new name must be on the disk as well.
            File::open(&at)?.sync_all()
        };
        write().map_err(Error::io("writing", own))
    }
}

/// What an object's content was: its SHA-256 sum.
fn version(content: &[u8]) -> Version {
    Version(format!("\"{}\"", body::sum_of(content)))
}
