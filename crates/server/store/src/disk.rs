//! The embedded engine's interface to the disk: one flat directory of files, behind a trait, so that tests can simulate
//! loss of power at every step.
//!
//! A caller may rely on three facts only. Bytes are durable after `sync_data` of their file, names are durable after
//! `sync` of the directory, and a rename is atomic.

use std::{
    fs::{File, OpenOptions},
    io::{Error, ErrorKind, Read, Result, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

pub mod sim;

/// A directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Returns the names in the directory, in no particular order.
    fn list(&self) -> Result<Vec<String>>;
    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>>;
    /// Creates an empty file, replacing an existing one of that name.
    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn remove(&self, name: &str) -> Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> Result<()>;
    /// Returns a file's path for error messages.
    fn path(&self, name: &str) -> String;
}

/// An open file.
pub trait DiskFile: Send {
    fn length(&self) -> Result<u64>;
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    fn truncate(&mut self, len: u64) -> Result<()>;
    fn sync_data(&mut self) -> Result<()>;
}

const LOCK: &str = "LOCK";

/// A directory of the file system, locked exclusively while this value lives.
pub struct RealDisk {
    directory: PathBuf,
    handle: File,
    _lock: Option<File>,
}

impl RealDisk {
    /// Creates the directory if it does not exist, and locks it.
    pub fn open(directory: &Path) -> Result<Self> {
        if !directory.is_dir() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty())
            {
                File::open(parent)?.sync_all()?;
            }
        }
        let lock = lock(&directory.join(LOCK))?;
        Ok(Self { _lock: Some(lock), ..Self::unlocked(directory)? })
    }

    /// Opens a directory without a lock, such as one for saved snapshots.
    pub(crate) fn unlocked(directory: &Path) -> Result<Self> {
        // The parent of a bare file name is the empty path.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let handle = File::open(directory)?;
        Ok(Self { directory: directory.to_owned(), handle, _lock: None })
    }
}

/// Locks `path`. The lock file contains its holder's process ID for the error message.
fn lock(path: &Path) -> Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    if let Err(errno) =
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
    {
        if errno != rustix::io::Errno::WOULDBLOCK {
            return Err(errno.into());
        }
        let mut holder = String::new();
        file.read_to_string(&mut holder)?;
        return Err(Error::new(
            ErrorKind::WouldBlock,
            format!(
                "process {} holds it; a store is opened by one process at a time",
                holder.trim()
            ),
        ));
    }
    file.set_len(0)?;
    write!(file, "{}", std::process::id())?;
    Ok(file)
}

impl Disk for RealDisk {
    fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            if let Ok(name) = entry?.file_name().into_string()
                && name != LOCK
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.directory.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.directory.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        std::fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.directory.join(name))
    }

    fn sync(&self) -> Result<()> {
        self.handle.sync_all()
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// A file of the file system.
pub(crate) struct RealFile(pub(crate) File);

impl DiskFile for RealFile {
    fn length(&self) -> Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&mut self) -> Result<()> {
        self.0.sync_data()
    }
}
