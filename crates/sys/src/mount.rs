//! Mounts and unmounts.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use nix::mount::{MntFlags, MsFlags};

use crate::Error;

pub trait Mounts: Send + Sync {
    /// Mounts a tmpfs; without a size it is the kernel's default, half of the memory.
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error>;
    fn bind(&self, from: &Path, at: &Path) -> Result<(), Error>;
    /// Unmounts; success if nothing is mounted there.
    fn unmount(&self, at: &Path) -> Result<(), Error>;
    /// The mount points at and below a path, innermost first.
    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, Error>;

    fn is_mount_point(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.below(path)?.iter().any(|at| at == path))
    }

    /// Unmounts all at and below a path, so that its removal cannot reach into another file system.
    fn unmount_below(&self, path: &Path) -> Result<(), Error> {
        self.below(path)?.iter().try_for_each(|at| self.unmount(at))
    }
}

/// The kernel.
pub struct HostMounts;

impl Mounts for HostMounts {
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error> {
        let options = size.map(|bytes| format!("size={bytes}"));
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, options.as_deref())
            .map_err(io::Error::from)
            .map_err(Error::at("mount tmpfs at", at))
    }

    fn bind(&self, from: &Path, at: &Path) -> Result<(), Error> {
        nix::mount::mount(
            Some(from),
            at,
            None::<&str>,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            None::<&str>,
        )
        .map_err(io::Error::from)
        .map_err(Error::at("bind-mount at", at))
    }

    fn unmount(&self, at: &Path) -> Result<(), Error> {
        match nix::mount::umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
            Err(error) => Err(Error::at("unmount", at)(error.into())),
        }
    }

    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, Error> {
        let table = Path::new("/proc/self/mountinfo");
        let text = std::fs::read_to_string(table).map_err(Error::at("read", table))?;
        Ok(mount_points(&text, path))
    }
}

fn mount_points(mountinfo: &str, below: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(below)).collect();
    points.reverse();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    points
}

/// The kernel writes blanks and backslashes in octal.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

/// Remembers what it was asked for instead of doing it.
#[derive(Default)]
pub struct RecordedMounts(Mutex<Vec<PathBuf>>);

impl RecordedMounts {
    fn points(&self) -> std::sync::MutexGuard<'_, Vec<PathBuf>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Mounts for RecordedMounts {
    fn tmpfs(&self, at: &Path, _size: Option<u64>) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn bind(&self, _from: &Path, at: &Path) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn unmount(&self, at: &Path) -> Result<(), Error> {
        self.points().retain(|point| point != at);
        Ok(())
    }

    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, Error> {
        Ok(self.points().iter().filter(|point| point.starts_with(path)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_innermost_first_and_unescaped() {
        let table = "1 0 0:1 / / rw - ext4 /dev/a rw\n\
                     2 1 0:2 / /pods rw - tmpfs t rw\n\
                     3 2 0:3 / /pods/a\\040b/c rw - tmpfs t rw\n\
                     4 1 0:4 / /podsx rw - tmpfs t rw\n";
        let found = mount_points(table, Path::new("/pods"));
        assert_eq!(found, [PathBuf::from("/pods/a b/c"), PathBuf::from("/pods")]);
    }
}
