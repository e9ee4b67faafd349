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
    Error, Secrecy, Since, Version,
    name::{self, UNFINISHED},
};

/// The largest object that is read, in bytes: backups are not read here.
const LARGEST: usize = 16 << 20;
/// The most objects that a listing has.
const MOST: usize = 100_000;

/// A state store.
#[derive(Clone, Debug)]
pub struct Store {
    base: PathBuf,
}

impl Store {
    /// The store at a URL. A directory that is missing is made by the first write.
    pub fn open(url: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::Url { url: url.to_owned(), reason };
        let (scheme, path) = url.split_once("://").ok_or_else(|| wrong("it is no URL"))?;
        if scheme != "file" {
            return Err(Error::Scheme { url: url.to_owned(), scheme: scheme.to_owned() });
        }
        if !path.starts_with('/') || path.contains('\0') {
            return Err(wrong("its path is not absolute"));
        }
        Ok(Self { base: path.into() })
    }

    /// An object and its version; nothing if there is none.
    pub fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        name::check(name)?;
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
        let version = Version::of(&content);
        Ok(Some((content, version)))
    }

    /// Copies an object, however large it is, into a file, which is the caller's alone. Says whether there is one.
    pub fn fetch(&self, name: &str, to: &Path) -> Result<bool, Error> {
        name::check(name)?;
        let mut from = match sys::read_beneath(&self.base, Path::new(name)) {
            Ok(file) => file,
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::sys("reading", name)(error)),
        };
        let mut copy = || {
            let mut file = fs::OpenOptions::new();
            let mut file = file.write(true).create_new(true).mode(0o600).open(to)?;
            std::io::copy(&mut from, &mut file).map(drop)
        };
        copy().map_err(Error::io("copying", name))?;
        Ok(true)
    }

    /// Writes a new object, however large it is, from a file. It is for its owner alone.
    pub fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        let mut from = File::open(from).map_err(Error::io("reading what is to be", name))?;
        self.put_from(name, &mut from, &Since::Absent, Secrecy::Private)
    }

    /// Writes an object, if it still is what the writer made it from.
    pub fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Since,
        secrecy: Secrecy,
    ) -> Result<Version, Error> {
        self.put_from(name, &mut &*content, since, secrecy)?;
        Ok(Version::of(content))
    }

    fn put_from(
        &self,
        name: &str,
        content: &mut dyn std::io::Read,
        since: &Since,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        name::check(name)?;
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
    pub fn discard(&self, name: &str) -> Result<(), Error> {
        name::check(name)?;
        let _alone = self.alone().map_err(Error::io("removing", name))?;
        self.take_away(name)
    }

    /// Removes an object, if it still is what was read.
    pub fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        name::check(name)?;
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

    /// The names of all objects below a directory (of the whole store, if it is empty), sorted. Links are not followed,
    /// and are no objects.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, Error> {
        if !directory.is_empty() {
            name::check(directory)?;
        }
        let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
        while let Some(directory) = left.pop() {
            for (name, is_directory) in self.entries(&directory)? {
                let name = match directory.as_str() {
                    "" => name,
                    directory => format!("{directory}/{name}"),
                };
                if is_directory {
                    left.push(name)
                } else {
                    found.push(name)
                }
                if found.len() + left.len() > MOST {
                    let name = directory;
                    return Err(Error::TooMuch { name, most: MOST, unit: "objects" });
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// The names right below a directory, sorted, and whether each is a directory.
    pub fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        let (_held, at) = match self.hold(directory) {
            Ok(held) => held,
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let failed = || Error::io("listing", directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(at).map_err(failed())?.take(MOST) {
            let entry = entry.map_err(failed())?;
            let kind = entry.file_type().map_err(failed())?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if (kind.is_file() || kind.is_dir()) && name::check(&name).is_ok() {
                found.push((name, kind.is_dir()));
            }
        }
        found.sort();
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
