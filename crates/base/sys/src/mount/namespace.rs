//! A mount namespace of a process and its children, in which some directories are others than the host's.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

use super::{HostMounts, Mounts as _, holder, lines, table};
use crate::error::Error;

/// Makes a directory a mount of its own. Copies of this mount in namespaces that are made later share all mounts below
/// it, in both directions. No other mount of the host takes part.
pub fn make_common(at: &Path) -> Result<(), Error> {
    let at = &fs::canonicalize(at).map_err(Error::at("resolve", at))?;
    let mounts = table()?;
    let own = holder(&mounts, at).filter(|line| line.point == *at);
    if own.as_ref().is_some_and(|line| line.is_shared) {
        return Ok(());
    }
    if own.is_none() {
        HostMounts.bind(at, at)?;
        // A copy of a shared mount would otherwise share mounts with it.
        change(at, MsFlags::MS_PRIVATE)?;
    }
    change(at, MsFlags::MS_SHARED)
}

/// Moves the calling process into a mount namespace of its own. The process must have one thread. Mounts at `apart` do
/// not reach the former namespace; mounts elsewhere on a file system that has one of these paths do not either.
pub fn leave_host(apart: &[&Path]) -> Result<(), Error> {
    let root = Path::new("/");
    unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|error| Error::at("create a mount namespace with", root)(error.into()))?;
    for path in apart {
        let path = fs::canonicalize(path).map_err(Error::at("resolve", path))?;
        let mounts = table()?;
        if let Some(line) = holder(&mounts, &path) {
            change(&line.point, MsFlags::MS_SLAVE)?;
        }
    }
    // Pods with mount propagation expect shared mounts.
    change(root, MsFlags::MS_SHARED | MsFlags::MS_REC)
}

/// Moves the calling process, which must have one thread, into the mount namespace of another one.
pub fn enter(pid: i32) -> Result<(), Error> {
    let path = &namespace_file(pid);
    let failed = |error: io::Error| Error::at("enter the mount namespace", path)(error);
    let file = File::open(path).map_err(failed)?;
    setns(file, CloneFlags::CLONE_NEWNS).map_err(|error| failed(error.into()))
}

/// Returns `true` if a path is a mount point in the mount namespace of any process.
pub fn is_mount_point_of_any_process(at: &Path) -> bool {
    let mut seen = BTreeSet::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.any(|pid| {
        let namespace = fs::metadata(namespace_file(pid)).map(|meta| meta.ino());
        if !namespace.is_ok_and(|inode| seen.insert(inode)) {
            return false;
        }
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        lines(&mounts).any(|line| line.point == at)
    })
}

fn namespace_file(pid: i32) -> std::path::PathBuf {
    format!("/proc/{pid}/ns/mnt").into()
}

fn change(at: &Path, flags: MsFlags) -> Result<(), Error> {
    mount(None::<&str>, at, None::<&str>, flags, None::<&str>)
        .map_err(io::Error::from)
        .map_err(Error::at("change the propagation of the mount at", at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread, whose namespaces end with it.
    fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn common_directory_shares_mounts_and_others_stay_apart() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: mounts want root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [common, standard, other] = ["common", "standard", "other"].map(|n| dir.path().join(n));
        for made in [common.join("a"), common.join("b"), standard.clone(), other.clone()] {
            fs::create_dir_all(made).unwrap();
        }
        for is_shared in [true, false] {
            in_thread(|| {
                // The thread's namespace stands for the host's.
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                change(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC).unwrap();
                if is_shared {
                    change(Path::new("/"), MsFlags::MS_SHARED | MsFlags::MS_REC).unwrap();
                }
                for _ in 0..2 {
                    make_common(&common).unwrap();
                }
                in_thread(|| {
                    leave_host(&[&standard]).unwrap();
                    HostMounts.bind(&common, &standard).unwrap();
                    HostMounts.tmpfs(&standard.join("a"), None).unwrap();
                    fs::write(standard.join("a/inside"), "").unwrap();
                    HostMounts.tmpfs(&other, None).unwrap();
                });
                assert_eq!(names(&standard), [""; 0], "the host sees its own directory");
                assert_eq!(names(&common.join("a")), ["inside"]);
                assert!(!HostMounts.is_mount_point(&other).unwrap());
                HostMounts.unmount_below(&common).unwrap();
            });
        }
    }

    #[test]
    fn finds_mount_points_of_other_processes() {
        assert!(is_mount_point_of_any_process(Path::new("/proc")));
        assert!(!is_mount_point_of_any_process(Path::new("/proc/self/no-mount")));
    }
}
