//! A machine's namespaces: a process makes them and holds them, and every other process of the machine enters them.
//!
//! Namespaces belong to threads, so that they are made and entered here by processes of one thread, before they
//! become what they are started for. Invariant: a process whose network namespace is not the caller's has all of
//! the machine's namespaces, because the network's comes last.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use netlink::{Kernel, Net};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};
use tokio::time::Instant;

use crate::{Error, link::INSIDE};

/// The machine's table of hosts.
pub const HOSTS: &str = "/etc/hosts";
/// In the order in which they are entered.
const SPACES: [(&str, CloneFlags); 3] = [
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
];
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// What a machine has for itself.
#[derive(Clone, Debug, Default)]
pub struct Space {
    pub hostname: String,
    /// Directories that begin empty, in memory.
    pub private: Vec<PathBuf>,
    /// What is seen at a place, and the place.
    pub bound: Vec<(PathBuf, PathBuf)>,
    /// Directories in whose place nothing is seen. They are hidden last.
    pub hidden: Vec<PathBuf>,
}

/// The file that stands for one of a process's namespaces.
pub fn file(pid: i32, space: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/{space}"))
}

/// Whether a process has a machine's namespaces by now.
pub fn is_inside(pid: i32) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|meta| meta.ino()).ok();
    let theirs = inode(&file(pid, "net"));
    theirs.is_some() && theirs != inode(Path::new("/proc/self/ns/net"))
}

/// Waits until the process that holds the namespaces has made them.
pub fn ready(holder: i32) -> Result<(), Error> {
    let start = Instant::now();
    while !is_inside(holder) {
        if start.elapsed() > PATIENCE || !Path::new(&format!("/proc/{holder}")).exists() {
            return Err(Error::Other(format!(
                "process {holder}, which is to hold a machine's namespaces, did not make them; its log says why"
            )));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Makes the namespaces. The calling process, which has one thread, is inside afterwards.
pub fn make(space: &Space) -> Result<(), Error> {
    let failed = |what: &str| {
        let text = format!("{what} of {}", space.hostname);
        move |e: nix::Error| Error::Other(format!("{text}: {e}"))
    };
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(failed("making the namespaces"))?;
    // The outer mounts come and go here too, and none of the machine's comes out. Among the machine's own
    // they are shared, as Pods with mount propagation expect.
    for flags in [MsFlags::MS_SLAVE, MsFlags::MS_SHARED] {
        mount(None::<&str>, "/", None::<&str>, flags | MsFlags::MS_REC, None::<&str>)
            .map_err(failed("setting apart the mounts"))?;
    }
    // What is bound is opened first: the place that it comes from may be covered by then.
    for directory in &space.private {
        empty(directory)?;
    }
    for (from, to) in &space.bound {
        if from.is_dir() {
            fs::create_dir_all(to).map_err(Error::file("creating", to))?;
        }
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|e| {
            Error::File { operation: "mounting over", path: to.clone(), source: e.into() }
        })?;
    }
    for directory in space.hidden.iter().filter(|directory| directory.is_dir()) {
        empty(directory)?;
    }
    nix::unistd::sethostname(&space.hostname).map_err(failed("naming the machine"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed("making the network"))
}

fn empty(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).map_err(
        |e| Error::File { operation: "mounting over", path: directory.into(), source: e.into() },
    )
}

/// Enters the namespaces that a process has.
pub fn enter(pid: i32) -> Result<(), Error> {
    // All are opened before one is entered: /proc is another's afterwards.
    let open = |(space, flag): (&str, CloneFlags)| {
        let path = file(pid, space);
        let opened = File::open(&path).map_err(Error::file("opening the namespace", &path))?;
        Ok::<_, Error>((opened, flag, path))
    };
    let opened = SPACES.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for (file, flag, path) in opened {
        setns(file, flag).map_err(|e| Error::File {
            operation: "entering",
            path,
            source: e.into(),
        })?;
    }
    Ok(())
}

/// Waits, inside, for the network: addresses come from outside, a moment after the namespace. Says whether it came.
pub fn wired() -> bool {
    let start = Instant::now();
    let wired = || {
        let link = Kernel::open().and_then(|net| net.link(INSIDE));
        link.is_ok_and(|link| link.is_some_and(|link| link.up))
    };
    while !wired() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// The processes that have the namespaces of one that is inside of a machine.
pub fn inhabitants(known: i32) -> Vec<i32> {
    let Some(space) = fs::metadata(file(known, "mnt")).ok().filter(|_| is_inside(known)) else {
        return Vec::new();
    };
    with_mounts(space.ino())
}

/// The processes that see the mounts of one namespace, by its inode.
pub fn with_mounts(inode: u64) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::metadata(file(*pid, "mnt")).is_ok_and(|meta| meta.ino() == inode))
        .collect()
}
