//! A machine's namespaces: one process creates and holds them, and the machine's other processes enter them.
//!
//! Namespaces belong to threads. So they are created and entered by processes with one thread, before these run their
//! programs. Invariant: a process in another network namespace than the caller's is in all of the machine's namespaces,
//! because the network namespace comes last.
//!
//! A PID namespace applies to child processes only, so the parent creates or enters it before it starts a process
//! ([`among`]). The first process in it is the machine's: when it ends, the kernel kills all others.

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
use tokio::{runtime::Handle, time::Instant};

use crate::error::Error;

/// The name of the network interface inside a machine.
pub const INSIDE: &str = "eth0";
/// The path of the hosts file.
pub const HOSTS: &str = "/etc/hosts";
/// The namespaces, in the order in which they are entered.
const SPACES: [(&str, CloneFlags); 4] = [
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
];
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

/// The hostname and mounts of a machine.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// The hostname.
    pub hostname: String,
    /// Directories that are an empty tmpfs.
    pub private: Vec<PathBuf>,
    /// Bind mounts: source and target.
    pub bound: Vec<(PathBuf, PathBuf)>,
    /// Directories that are read-only inside.
    pub read_only: Vec<PathBuf>,
    /// Directories that are covered by an empty one, after all other mounts.
    pub hidden: Vec<PathBuf>,
    /// Bind mounts below hidden directories: source and target.
    pub kept: Vec<(PathBuf, PathBuf)>,
}

/// The PID namespace of a new process.
#[derive(Clone, Copy, Debug)]
pub enum Processes {
    /// A new namespace, whose first process it becomes.
    New,
    /// The namespace of another process.
    Of(i32),
}

/// Calls `start` in a thread whose child processes are in the given PID namespace. The thread is in the caller's Tokio
/// runtime, if there is one.
pub fn among<T: Send>(processes: Processes, start: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let runtime = Handle::try_current().ok();
    let work = || -> Result<T, Error> {
        let _inside = runtime.as_ref().map(Handle::enter);
        match processes {
            Processes::New => unshare(CloneFlags::CLONE_NEWPID).map_err(Error::NewPidNamespace)?,
            Processes::Of(pid) => {
                let path = file(pid, "pid");
                let opened =
                    File::open(&path).map_err(sys::Error::at("opening the namespace", &path))?;
                setns(opened, CloneFlags::CLONE_NEWPID)
                    .map_err(|e| sys::Error::at("entering", &path)(e.into()))?;
            }
        }
        Ok(start())
    };
    let ended = thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|_| Err(Error::Panic))
}

/// Returns the path of one of a process's namespaces.
pub fn file(pid: i32, space: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/{space}"))
}

/// Returns `true` if a process has entered a machine's namespaces.
pub fn is_inside(pid: i32) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|meta| meta.ino()).ok();
    let theirs = inode(&file(pid, "net"));
    theirs.is_some() && theirs != inode(Path::new("/proc/self/ns/net"))
}

/// Waits until the process `holder` has created the namespaces.
pub fn ready(holder: i32) -> Result<(), Error> {
    let start = Instant::now();
    while !is_inside(holder) {
        if start.elapsed() > TIMEOUT || !Path::new(&format!("/proc/{holder}")).exists() {
            return Err(Error::NotReady { pid: holder });
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Creates the namespaces and enters them. The calling process must have one thread and be the first process of its PID
/// namespace.
pub fn make(space: &Space) -> Result<(), Error> {
    let failed = |operation: &'static str| {
        let machine = space.hostname.clone();
        move |source: nix::Error| Error::Namespaces { operation, machine, source }
    };
    if std::process::id() != 1 {
        return Err(Error::PidNamespace { machine: space.hostname.clone() });
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)
        .map_err(failed("creating the namespaces"))?;
    // The host's mounts propagate into the machine, and the machine's do not propagate out. Within the machine, mounts
    // are shared, as Pods with mount propagation expect.
    for flags in [MsFlags::MS_SLAVE, MsFlags::MS_SHARED] {
        mount(None::<&str>, "/", None::<&str>, flags | MsFlags::MS_REC, None::<&str>)
            .map_err(failed("isolating the mounts"))?;
    }
    // Private directories come first, because bind mounts may have their targets in them.
    for directory in &space.private {
        mount_empty(directory)?;
    }
    for (from, to) in &space.bound {
        if from.is_dir() {
            fs::create_dir_all(to).map_err(sys::Error::at("creating", to))?;
        }
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| sys::Error::at("mounting over", to)(e.into()))?;
    }
    for directory in &space.read_only {
        protect(directory)?;
    }
    hide(space)?;
    // Shows the machine's own processes alone. Nothing below needs the host's /proc.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .map_err(failed("mounting /proc"))?;
    nix::unistd::sethostname(&space.hostname).map_err(failed("setting the hostname"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed("creating the network namespace"))
}

/// Hides directories. Sources of `kept` are opened first, because they may be hidden, too.
fn hide(space: &Space) -> Result<(), Error> {
    let open = |(from, to): &(PathBuf, PathBuf)| {
        let opened = File::open(from).map_err(sys::Error::at("opening", from))?;
        Ok::<_, Error>((opened, to.clone()))
    };
    let kept = space.kept.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for directory in space.hidden.iter().filter(|directory| directory.is_dir()) {
        mount_empty(directory)?;
    }
    for (opened, to) in kept {
        let from = format!("/proc/self/fd/{}", opened.as_raw_fd());
        fs::create_dir_all(&to).map_err(sys::Error::at("creating", &to))?;
        mount(Some(from.as_str()), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| sys::Error::at("mounting over", &to)(e.into()))?;
    }
    Ok(())
}

/// Makes a directory read-only by a bind mount over itself.
fn protect(directory: &Path) -> Result<(), Error> {
    let bind = MsFlags::MS_BIND;
    for flags in [bind, bind | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY] {
        mount(Some(directory), directory, None::<&str>, flags, None::<&str>)
            .map_err(|e| sys::Error::at("protecting", directory)(e.into()))?;
    }
    Ok(())
}

fn mount_empty(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(sys::Error::at("creating", directory))?;
    Ok(mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .map_err(|e| sys::Error::at("mounting over", directory)(e.into()))?)
}

/// Enters the namespaces of a process, except its PID namespace, in which the caller was started.
pub fn enter(pid: i32) -> Result<(), Error> {
    // All files are opened before the first is entered, because /proc is another one afterwards.
    let open = |(space, flag): (&str, CloneFlags)| {
        let path = file(pid, space);
        let opened = File::open(&path).map_err(sys::Error::at("opening the namespace", &path))?;
        Ok::<_, Error>((opened, flag, path))
    };
    let opened = SPACES.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for (file, flag, path) in opened {
        setns(file, flag).map_err(|e| sys::Error::at("entering", &path)(e.into()))?;
    }
    Ok(())
}

/// Waits, inside a machine, until its network is connected from outside. Returns `false` on timeout.
pub fn wired() -> bool {
    let start = Instant::now();
    let wired = || {
        let link = Kernel::open().and_then(|net| net.link(INSIDE));
        link.is_ok_and(|link| link.is_some_and(|link| link.up))
    };
    while !wired() {
        if start.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// The mount namespace of a machine. While it is open, the kernel gives its inode to no other namespace, also after the
/// machine's last process.
#[derive(Debug)]
pub struct MountNamespace {
    _open: File,
    inode: u64,
}

impl MountNamespace {
    /// Opens the namespace of a process; `None` unless the process is inside a machine.
    pub fn of(pid: i32) -> Option<Self> {
        let open = File::open(file(pid, "mnt")).ok()?;
        let inode = open.metadata().ok()?.ino();
        is_inside(pid).then_some(Self { _open: open, inode })
    }

    /// Returns the processes in the namespace.
    pub fn processes(&self) -> Vec<i32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let inode = |pid: &i32| fs::metadata(file(*pid, "mnt")).map(|meta| meta.ino()).ok();
        pids.filter(|pid| inode(pid) == Some(self.inode)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn shell(script: &str) -> std::io::Result<Child> {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn()
    }

    fn output_of(child: Child) -> String {
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Waits for the first line of a process's output.
    fn read_line(child: &mut Child) -> String {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line
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
        let mut second = second.unwrap();
        assert_eq!(read_line(&mut second), "2\n");
        let outside = shell("echo $$").unwrap();
        let own = outside.id().to_string();
        assert_eq!(output_of(outside), own);
        sys::process::kill(pid);
        assert!(!second.wait().unwrap().success());
        drop(output_of(first));
        among(Processes::Of(pid), || ()).unwrap_err();
    }

    #[test]
    fn finds_no_processes_of_later_namespaces() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root makes namespaces");
            return;
        }
        let unshared = || {
            let script = "echo ready; exec sleep 60";
            let mut command = Command::new("unshare");
            command.args(["--mount", "--net", "sh", "-c", script]).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            assert_eq!(read_line(&mut child), "ready\n");
            child
        };
        assert!(MountNamespace::of(std::process::id().cast_signed()).is_none());
        let mut first = unshared();
        let pid = first.id().cast_signed();
        let namespace = MountNamespace::of(pid).unwrap();
        assert_eq!(namespace.processes(), [pid]);
        first.kill().unwrap();
        first.wait().unwrap();
        // The kernel reuses the lowest free inode.
        let mut later: Vec<_> = (0..8).map(|_| unshared()).collect();
        let found = namespace.processes();
        for child in &mut later {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, Vec::<i32>::new());
    }
}
