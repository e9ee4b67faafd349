//! A node's namespaces: a process makes them and holds them, and every other process of the node enters them.
//!
//! Namespaces belong to threads, so that they are made and entered here by processes of one thread, before they
//! become what they are started for. Invariant: a process whose network namespace is not the caller's has all of
//! the node's namespaces, because the network's comes last.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tokio::time::Instant;

use netlink::{Kernel, Net};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

use super::link::INSIDE;
use crate::{Cluster, Error, process::Role, replicated};

/// What processes of a node must not share with those of other nodes: names of network namespaces, the runtime's
/// sockets and the results of its network plugins.
const PRIVATE: [&str; 3] = ["/run/netns", "/run/containerd", "/var/lib/cni"];
const HOSTS: &str = "/etc/hosts";
/// In the order in which they are entered.
const SPACES: [(&str, CloneFlags); 3] = [
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
];
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// The file that stands for one of a process's namespaces.
pub(crate) fn file(pid: i32, space: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/{space}"))
}

/// Whether a process has the node's namespaces by now.
fn is_inside(pid: i32) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|meta| meta.ino()).ok();
    let theirs = inode(&file(pid, "net"));
    theirs.is_some() && theirs != inode(Path::new("/proc/self/ns/net"))
}

/// Waits until the process that holds the namespaces has made them.
pub(crate) fn ready(holder: i32) -> Result<(), Error> {
    let start = Instant::now();
    while !is_inside(holder) {
        if start.elapsed() > PATIENCE || !Path::new(&format!("/proc/{holder}")).exists() {
            return Err(Error::Other(format!(
                "process {holder}, which is to hold a node's namespaces, did not make them; its log is holder.log"
            )));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The whole life of the process that holds a node's namespaces. Those that outlived an earlier one are adopted, so
/// that its death ends nothing.
pub fn hold(node: &Cluster) -> Result<(), Error> {
    let survivor = [Role::Containerd, Role::Agent].iter().find_map(|role| role.running(node));
    match survivor.filter(|pid| is_inside(*pid)) {
        Some(pid) => enter_spaces(pid)?,
        None => make(node)?,
    }
    sys::pause().map_err(|e| Error::Other(format!("waiting: {e}")))
}

fn make(node: &Cluster) -> Result<(), Error> {
    let hostname = node.settings.node_name.as_str();
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: nix::Error| Error::Other(format!("{what} of node {hostname}: {e}"))
    };
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(failed("making the namespaces"))?;
    // The machine's mounts come and go here too, and none of the node's comes to the machine. Among the node's own
    // they are shared, as Pods with mount propagation expect.
    for flags in [MsFlags::MS_SLAVE, MsFlags::MS_SHARED] {
        mount(None::<&str>, "/", None::<&str>, flags | MsFlags::MS_REC, None::<&str>)
            .map_err(failed("setting apart the mounts"))?;
    }
    for directory in PRIVATE {
        fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
        mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
            .map_err(failed("mounting over a directory"))?;
    }
    if node.is_replicated() {
        replicated::mount_data(node)?;
    }
    let own_hosts = write_hosts(node)?;
    mount(Some(&own_hosts), HOSTS, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(failed("mounting over the table of hosts"))?;
    nix::unistd::sethostname(hostname).map_err(failed("naming the machine"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed("making the network"))
}

/// The machine's table of hosts with the node's own name, which whoever looks it up need not ask a name server for.
fn write_hosts(node: &Cluster) -> Result<PathBuf, Error> {
    let machines = fs::read_to_string(HOSTS).unwrap_or_default();
    let path = node.root.join("etc/hosts");
    let text = format!("{machines}\n{} {}\n", node.settings.address, node.settings.node_name);
    fs::write(&path, text).map_err(Error::file("writing", &path))?;
    Ok(path)
}

fn enter_spaces(pid: i32) -> Result<(), Error> {
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

/// Becomes another program inside of a node; returns only if that fails.
pub fn enter(node: &Cluster, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::Other("no command is given to run in the node".to_owned());
    };
    if let Err(error) = enter_when_ready(node) {
        return error;
    }
    let source = Command::new(program).args(arguments).current_dir("/").exec();
    Error::Start { program: program.to_string_lossy().into_owned(), source }
}

fn enter_when_ready(node: &Cluster) -> Result<(), Error> {
    let start = Instant::now();
    let holder = loop {
        match Role::Holder.running(node) {
            Some(pid) => break pid,
            None if start.elapsed() > PATIENCE => {
                return Err(Error::Other(format!(
                    "node {name} does not run; start it with `windlass node start {name}`",
                    name = node.settings.node_name
                )));
            }
            None => std::thread::sleep(LOOK),
        }
    };
    ready(holder)?;
    enter_spaces(holder)?;
    // Addresses come from outside, a moment after the namespace.
    let wired = || {
        let link = Kernel::open().and_then(|net| net.link(INSIDE));
        link.is_ok_and(|link| link.is_some_and(|link| link.up))
    };
    while !wired() && start.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The processes that have the namespaces of a node, apart from those that have the machine's.
pub(crate) fn inhabitants(node: &Cluster) -> Vec<i32> {
    let known =
        node.roles().iter().find_map(|role| role.running(node)).filter(|pid| is_inside(*pid));
    let Some(space) = known.and_then(|pid| fs::metadata(file(pid, "mnt")).ok()) else {
        return Vec::new();
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::metadata(file(*pid, "mnt")).is_ok_and(|meta| meta.ino() == space.ino()))
        .collect()
}
