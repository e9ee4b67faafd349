//! A machine's namespaces: a process makes them and holds them, and every other process of the machine enters them.
//!
//! Namespaces belong to threads, so that they are made and entered here by processes of one thread, before they
//! become what they are started for. Invariant: a process whose network namespace is not the caller's has all of
//! the machine's namespaces, because the network's comes last.
//!
//! A namespace of processes is entered by children only, so that it is made and entered by whoever starts a process
//! ([`among`]). Its first process is the machine's: when it ends, the kernel ends all others.

use std::{
    fs::{self, File},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    thread,
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
const SPACES: [(&str, CloneFlags); 4] = [
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
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
    /// Directories that nothing inside can write to.
    pub read_only: Vec<PathBuf>,
    /// Directories in whose place nothing is seen. They are hidden last.
    pub hidden: Vec<PathBuf>,
    /// Directories that are seen below hidden ones, and their places there.
    pub kept: Vec<(PathBuf, PathBuf)>,
}

/// The namespace of processes that a new process is to have.
#[derive(Clone, Copy, Debug)]
pub enum Processes {
    /// A new one, of which it becomes the first process.
    New,
    /// The one of another process.
    Of(i32),
}

/// Starts a process in a namespace of processes: `start` is called in a thread whose children have it.
pub fn among<T: Send>(processes: Processes, start: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let work = || -> Result<T, Error> {
        match processes {
            Processes::New => unshare(CloneFlags::CLONE_NEWPID)
                .map_err(|e| Error::Other(format!("making a namespace of processes: {e}")))?,
            Processes::Of(pid) => {
                let path = file(pid, "pid");
                let opened =
                    File::open(&path).map_err(Error::file("opening the namespace", &path))?;
                setns(opened, CloneFlags::CLONE_NEWPID)
                    .map_err(|e| Error::file("entering", &path)(e.into()))?;
            }
        }
        Ok(start())
    };
    let ended = thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|_| Err(Error::Other("starting a process failed by a panic".to_owned())))
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

/// Makes the namespaces. The calling process, which has one thread, is inside afterwards; it is the first process of its
/// namespace of processes already.
pub fn make(space: &Space) -> Result<(), Error> {
    let failed = |what: &str| {
        let text = format!("{what} of {}", space.hostname);
        move |e: nix::Error| Error::Other(format!("{text}: {e}"))
    };
    if std::process::id() != 1 {
        let text =
            format!("{} has no namespace of processes: start it by its keeper", space.hostname);
        return Err(Error::Other(text));
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)
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
    for directory in &space.read_only {
        protect(directory)?;
    }
    hide(space)?;
    // Of the machine's own processes alone. What was looked up in the outer table of processes has been by now.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .map_err(failed("mounting /proc"))?;
    nix::unistd::sethostname(&space.hostname).map_err(failed("naming the machine"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed("making the network"))
}

/// Hides directories. What stays is opened first, because its own place may be hidden then.
fn hide(space: &Space) -> Result<(), Error> {
    let open = |(from, to): &(PathBuf, PathBuf)| {
        let opened = File::open(from).map_err(Error::file("opening", from))?;
        Ok::<_, Error>((opened, to.clone()))
    };
    let kept = space.kept.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for directory in space.hidden.iter().filter(|directory| directory.is_dir()) {
        empty(directory)?;
    }
    for (opened, to) in kept {
        let from = format!("/proc/self/fd/{}", opened.as_raw_fd());
        fs::create_dir_all(&to).map_err(Error::file("creating", &to))?;
        mount(Some(from.as_str()), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| Error::file("mounting over", &to)(e.into()))?;
    }
    Ok(())
}

/// Mounts a directory over itself so that it can be read only.
fn protect(directory: &Path) -> Result<(), Error> {
    let bind = MsFlags::MS_BIND;
    for flags in [bind, bind | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY] {
        mount(Some(directory), directory, None::<&str>, flags, None::<&str>)
            .map_err(|e| Error::file("protecting", directory)(e.into()))?;
    }
    Ok(())
}

fn empty(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).map_err(
        |e| Error::File { operation: "mounting over", path: directory.into(), source: e.into() },
    )
}

/// Enters the namespaces that a process has, apart from that of processes, which the caller was started in.
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn shell(script: &str) -> std::io::Result<Child> {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn()
    }

    fn said(child: Child) -> String {
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn ends_processes_of_namespace_with_the_first() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root makes namespaces");
            return;
        }
        let first = among(Processes::New, || shell("exec sleep 60")).unwrap().unwrap();
        let pid = first.id().cast_signed();
        let second = among(Processes::Of(pid), || shell("echo $$; exec sleep 60")).unwrap();
        let outside = shell("echo $$").unwrap();
        let own = outside.id().to_string();
        assert_eq!(said(outside), own);
        sys::process::kill(pid);
        assert_eq!(said(second.unwrap()), "2");
        drop(said(first));
        among(Processes::Of(pid), || ()).unwrap_err();
    }
}
