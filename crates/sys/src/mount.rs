//! Mounts and unmounts.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    sync::Mutex,
};

use nix::mount::{MntFlags, MsFlags};

use crate::{Error, Held};

/// Mounts of this process' namespace; tests record them in place of making them.
pub trait Mounts: Send + Sync {
    /// Mounts a tmpfs; without a size it is the kernel's default, half of the memory.
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), Error>;
    /// Mounts a file system of huge pages of so many bytes each.
    fn huge_pages(&self, at: &Path, size: u64) -> Result<(), Error>;
    fn bind(&self, from: &Path, at: &Path) -> Result<(), Error>;
    /// Mounts what is held open, wherever its path leads by now, and nothing that is mounted below it.
    fn bind_held(&self, from: &Held, at: &Path) -> Result<(), Error>;
    /// Unmounts; success if nothing is mounted there.
    fn unmount(&self, at: &Path) -> Result<(), Error>;
    /// The mount points at and below a path, innermost first.
    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, Error>;

    /// Lets what is mounted below a directory show in the mount tables of others, such as a container's: one that lies
    /// on a private mount is bound over itself.
    fn make_shared(&self, at: &Path) -> Result<(), Error>;

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

    fn bind_held(&self, from: &Held, at: &Path) -> Result<(), Error> {
        // The kernel's own link to what the descriptor holds; its text is never walked.
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
    let table = Path::new("/proc/self/mountinfo");
    std::fs::read_to_string(table).map_err(Error::at("read", table))
}

/// A line of mountinfo.
struct Line<'a> {
    /// What of the file system is mounted.
    root: PathBuf,
    point: PathBuf,
    /// `major:minor`.
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

/// The mount on which a path lies: of those mounted at one place, the last.
fn holder<'a>(mountinfo: &'a str, path: &Path) -> Option<Line<'a>> {
    let holds = lines(mountinfo).filter(|line| path.starts_with(&line.point));
    holds.max_by_key(|line| line.point.components().count())
}

fn is_shared(mountinfo: &str, path: &Path) -> bool {
    holder(mountinfo, path).is_some_and(|line| line.is_shared)
}

/// Whether a directory is mounted over itself, as [`Mounts::make_shared`] does; what is mounted there from elsewhere is
/// the administrator's.
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

    fn huge_pages(&self, at: &Path, _size: u64) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn bind(&self, _from: &Path, at: &Path) -> Result<(), Error> {
        self.points().push(at.to_owned());
        Ok(())
    }

    fn bind_held(&self, _from: &Held, at: &Path) -> Result<(), Error> {
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
    fn mount_points_are_found_innermost_first_and_unescaped() {
        let table = "1 0 0:1 / / rw - ext4 /dev/a rw\n\
                     2 1 0:2 / /pods rw - tmpfs t rw\n\
                     3 2 0:3 / /pods/a\\040b/c rw - tmpfs t rw\n\
                     4 1 0:4 / /podsx rw - tmpfs t rw\n";
        let found = mount_points(table, Path::new("/pods"));
        assert_eq!(found, [PathBuf::from("/pods/a b/c"), PathBuf::from("/pods")]);
    }

    /// CVE-2021-25741, as root: a link takes the place of a directory between the look at it and the mount of it.
    #[test]
    fn what_is_held_is_mounted_wherever_its_path_leads_by_then() {
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
            // A thread's own mount namespace ends with it, and the mounts in it.
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
    fn a_file_system_of_huge_pages_has_pages_of_the_size_that_was_asked_for() {
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
    fn a_directory_is_shared_by_the_mount_that_holds_it_and_known_when_bound_over_itself() {
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
