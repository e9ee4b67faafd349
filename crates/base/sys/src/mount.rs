//! Mounts and unmounts.

pub mod namespace;

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags};
use parking_lot::Mutex;

use crate::{beneath::OpenPath, error::Error};

/// The mounts of this process's namespace. Tests record them instead.
pub trait Mounts: Send + Sync {
    /// Mounts a tmpfs. Without a size it gets the kernel's default, half of the memory.
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error>;
    /// Mounts a hugetlbfs with pages of `size` bytes.
    fn huge_pages(&self, at: &Path, size: u64) -> Result<(), Error>;
    /// Binds a directory tree, including the mounts below it.
    fn bind(&self, from: &Path, at: &Path) -> Result<(), Error>;
    /// Binds an open file or directory, wherever its path leads now, without the mounts below it.
    fn bind_held(&self, from: &OpenPath, at: &Path) -> Result<(), Error>;
    /// Unmounts a path. A path without a mount is success.
    fn unmount(&self, at: &Path) -> Result<(), Error>;
    /// Returns the mount points at and below a path, innermost first.
    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, Error>;

    /// Makes mounts below a directory propagate to other namespaces, such as a container's. A directory on a private
    /// mount is bound over itself.
    fn make_shared(&self, at: &Path) -> Result<(), Error>;

    /// Returns `true` if a file system is mounted at the path.
    fn is_mount_point(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.below(path)?.iter().any(|at| at == path))
    }

    /// Unmounts everything at and below a path, so that removing the path does not delete files of other file systems.
    fn unmount_below(&self, path: &Path) -> Result<(), Error> {
        self.below(path)?.iter().try_for_each(|at| self.unmount(at))
    }
}

/// The real mounts of the kernel.
pub struct HostMounts;

impl Mounts for HostMounts {
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error> {
        let options = size.map(|bytes| format!("size={bytes}"));
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, options.as_deref())
            .map_err(io::Error::from)
            .map_err(Error::at("mount tmpfs at", at))
    }

    fn huge_pages(&self, at: &Path, size: u64) -> Result<(), Error> {
        let options = format!("pagesize={size}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        nix::mount::mount(Some("nodev"), at, Some("hugetlbfs"), flags, Some(options.as_str()))
            .map_err(io::Error::from)
            .map_err(Error::at("mount hugetlbfs at", at))
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

    fn bind_held(&self, from: &OpenPath, at: &Path) -> Result<(), Error> {
        // A magic link of the kernel to the open file; no path is resolved.
        let from = format!("/proc/self/fd/{}", from.as_fd().as_raw_fd());
        nix::mount::mount(Some(from.as_str()), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)
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
        Ok(mount_points(&table()?, path))
    }

    fn make_shared(&self, at: &Path) -> Result<(), Error> {
        let at = &std::fs::canonicalize(at).map_err(Error::at("resolve", at))?;
        if is_shared(&table()?, at) {
            return Ok(());
        }
        self.bind(at, at)?;
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, at, None::<&str>, flags, None::<&str>)
            .map_err(io::Error::from)
            .map_err(Error::at("share the mount at", at))
    }
}

fn table() -> Result<String, Error> {
    // `/proc/self` would show the mounts of the process's first thread.
    let table = Path::new("/proc/thread-self/mountinfo");
    std::fs::read_to_string(table).map_err(Error::at("read", table))
}

/// A line of `/proc/self/mountinfo`.
struct Line<'a> {
    /// The path within the mounted file system.
    root: PathBuf,
    point: PathBuf,
    /// The device as `major:minor`.
    device: &'a str,
    is_shared: bool,
}

fn lines(mountinfo: &str) -> impl Iterator<Item = Line<'_>> {
    mountinfo.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, _, device, root, point, _, more @ ..] = &fields[..] else { return None };
        let mut optional = more.iter().take_while(|field| **field != "-");
        let is_shared = optional.any(|field| field.starts_with("shared:"));
        Some(Line { root: unescape(root), point: unescape(point), device, is_shared })
    })
}

/// Returns the mount that contains a path. If several are mounted at one path, it is the last.
fn holder<'a>(mountinfo: &'a str, path: &Path) -> Option<Line<'a>> {
    let holds = lines(mountinfo).filter(|line| path.starts_with(&line.point));
    holds.max_by_key(|line| line.point.components().count())
}

fn is_shared(mountinfo: &str, path: &Path) -> bool {
    holder(mountinfo, path).is_some_and(|line| line.is_shared)
}

/// Reports whether a directory is mounted over itself, as [`Mounts::make_shared`] does. A mount from elsewhere belongs
/// to the administrator.
pub fn is_over_itself(mountinfo: &str, at: &Path) -> bool {
    let over = holder(mountinfo, at).filter(|line| line.point == at);
    let under = at.parent().and_then(|parent| holder(mountinfo, parent));
    let (Some(over), Some(under)) = (over, under) else { return false };
    let within = at.strip_prefix(&under.point).is_ok_and(|rest| over.root == under.root.join(rest));
    over.device == under.device && within
}

fn mount_points(mountinfo: &str, below: &Path) -> Vec<PathBuf> {
    let points = lines(mountinfo).map(|line| line.point);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(below)).collect();
    points.reverse();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    points
}

/// Decodes the kernel's octal escapes of blanks and backslashes.
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

/// A fake that records the mounts instead of making them.
#[derive(Default)]
pub struct RecordedMounts {
    points: Mutex<Vec<PathBuf>>,
    sizes: Mutex<Vec<Option<u64>>>,
}

impl RecordedMounts {
    fn points(&self) -> parking_lot::MutexGuard<'_, Vec<PathBuf>> {
        self.points.lock()
    }

    /// Returns the sizes with which tmpfs were mounted.
    pub fn sizes(&self) -> Vec<Option<u64>> {
        self.sizes.lock().clone()
    }
}

impl Mounts for RecordedMounts {
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error> {
        self.points().push(at.to_owned());
        self.sizes.lock().push(size);
        Ok(())
    }

    fn huge_pages(&self, at: &Path, _size: u64) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn bind(&self, _from: &Path, at: &Path) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn bind_held(&self, _from: &OpenPath, at: &Path) -> Result<(), Error> {
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

    fn make_shared(&self, at: &Path) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_mount_points_innermost_first_and_unescaped() {
        let table = "1 0 0:1 / / rw - ext4 /dev/a rw\n\
                     2 1 0:2 / /pods rw - tmpfs t rw\n\
                     3 2 0:3 / /pods/a\\040b/c rw - tmpfs t rw\n\
                     4 1 0:4 / /podsx rw - tmpfs t rw\n";
        let found = mount_points(table, Path::new("/pods"));
        assert_eq!(found, [PathBuf::from("/pods/a b/c"), PathBuf::from("/pods")]);
    }

    /// CVE-2021-25741, as root: a link replaces a directory between the check and the mount.
    #[test]
    fn mounts_open_directory_after_its_path_changed() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: mounts want root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, secret) = (dir.path().join("volume"), dir.path().join("secret"));
        let at = dir.path().join("at");
        for made in [volume.join("data"), secret.clone(), at.clone()] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(volume.join("data/key"), "own").unwrap();
        std::fs::write(secret.join("key"), "secret").unwrap();
        let mount = || {
            // A thread's own mount namespace, and the mounts in it, end with the thread.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            let held = crate::hold_beneath(&volume, Path::new("data")).unwrap();
            std::fs::rename(volume.join("data"), volume.join("moved")).unwrap();
            std::os::unix::fs::symlink(&secret, volume.join("data")).unwrap();
            HostMounts.bind_held(&held, &at).unwrap();
            let mounted = std::fs::read_to_string(at.join("key")).unwrap();
            HostMounts.bind(&volume.join("data"), &at).unwrap();
            (mounted, std::fs::read_to_string(at.join("key")).unwrap())
        };
        let (by_descriptor, by_path) = std::thread::scope(|s| s.spawn(mount).join().unwrap());
        assert_eq!((by_descriptor.as_str(), by_path.as_str()), ("own", "secret"));
    }

    #[test]
    fn mounts_hugetlbfs_with_requested_page_size() {
        let pages = crate::huge_pages(Path::new(crate::HUGE_PAGES)).unwrap();
        if !nix::unistd::geteuid().is_root() || pages.is_empty() {
            eprintln!("skipped: mounts want root, and this a kernel with huge pages");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mount = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            for size in pages.keys() {
                HostMounts.huge_pages(dir.path(), *size).unwrap();
                let stat = nix::sys::statfs::statfs(dir.path()).unwrap();
                assert_eq!(u64::try_from(stat.block_size()).unwrap(), *size);
            }
            assert!(HostMounts.huge_pages(dir.path(), 12_345).is_err());
        };
        std::thread::scope(|s| s.spawn(mount).join().unwrap());
    }

    #[test]
    fn recognizes_shared_and_self_bound_directories() {
        let before = "1 0 8:1 /sub / rw - ext4 /dev/a rw\n\
                      2 1 8:1 /data /srv rw - ext4 /dev/a rw\n\
                      3 1 0:2 / /run rw shared:5 - tmpfs t rw\n";
        let kubelet = Path::new("/var/lib/kubelet");
        assert!(!is_shared(before, kubelet) && is_shared(before, Path::new("/run/kubelet")));
        assert!(!is_over_itself(before, kubelet));
        let line = "4 1 8:1 /sub/var/lib/kubelet /var/lib/kubelet rw shared:7 - ext4 /dev/a rw\n";
        let after = format!("{before}{line}");
        assert!(is_shared(&after, kubelet) && is_shared(&after, &kubelet.join("pods")));
        assert!(is_over_itself(&after, kubelet) && !is_over_itself(&after, Path::new("/srv")));
        assert!(!is_over_itself(&after, &kubelet.join("pods")));
        let other = after.replace("/sub/var/lib/kubelet", "/big/kubelet");
        assert!(!is_over_itself(&other, kubelet));
    }
}
