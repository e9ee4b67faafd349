//! A node's namespaces, which a process holds and every other process of the node enters.
//!
//! The holder is the first process of the node's namespace of processes: it buries orphans, and its end is the node's loss
//! of power, since the kernel ends every other process with it. Whoever starts a process of the node puts it there.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use bootstrap_core::Layout;
use instances::space::{self, HOSTS, Processes, Space};
use tokio::time::Instant;

use crate::{
    Cluster, Error, certs,
    process::{Role, internal},
    replicated,
};

/// What processes of a node must not share with those of other nodes: names of network namespaces, the runtime's
/// sockets and the results of its network plugins.
const PRIVATE: [&str; 3] = ["/run/netns", "/run/containerd", "/var/lib/cni"];
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the process that holds the namespaces has made them.
pub(crate) fn ready(holder: i32) -> Result<(), Error> {
    Ok(space::ready(holder)?)
}

/// The whole life of the process that holds a node's namespaces.
pub fn hold(node: &Cluster) -> Result<(), Error> {
    make(node)?;
    sys::pause().map_err(|e| Error::Other(format!("waiting: {e}")))
}

/// The directories of a cluster's root that its further nodes do not see: the keys, the objects, the sockets and the other
/// nodes.
const HIDDEN: [&str; 4] = ["etc", "nodes", "run", "var"];

fn make(node: &Cluster) -> Result<(), Error> {
    let bound = vec![(write_hosts(node)?, PathBuf::from(HOSTS))];
    let home = Layout::under(node.home()).kubernetes;
    let mut kept = vec![(node.root.clone(), node.root.clone()), (certs::excerpt(node), home)];
    if node.is_replicated() {
        kept.push(replicated::data(node)?);
    }
    let hidden = HIDDEN.map(|name| node.home().join(name)).into();
    let hostname = node.settings.node_name.clone();
    let private = PRIVATE.map(PathBuf::from).into();
    let read_only = node.binary().parent().map(Path::to_owned).into_iter().collect();
    Ok(space::make(&Space { hostname, private, bound, read_only, hidden, kept })?)
}

/// The process that holds a node's namespaces, once it has made them.
pub(crate) fn holder(node: &Cluster) -> Option<i32> {
    Role::Holder.running(node).filter(|pid| space::is_inside(*pid))
}

/// Waits for the process that holds a node's namespaces.
pub(crate) async fn wait_for_holder(node: &Cluster) -> Result<i32, Error> {
    let start = Instant::now();
    loop {
        if let Some(pid) = holder(node) {
            return Ok(pid);
        }
        if start.elapsed() > PATIENCE {
            return Err(not_running(node));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn not_running(node: &Cluster) -> Error {
    let name = &node.settings.node_name;
    Error::Other(format!("node {name} does not run; start it with `windlass node start {name}`"))
}

/// Starts a process among those of a node; `start` starts it.
pub(crate) fn among<T: Send>(node: &Cluster, start: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let holder = holder(node).ok_or_else(|| not_running(node))?;
    Ok(space::among(Processes::Of(holder), start)?)
}

/// Runs a command inside of a node with the terminal of the caller, and returns how it ended.
pub(crate) async fn run(node: &Cluster, command: &[OsString]) -> Result<ExitStatus, Error> {
    wait_for_holder(node).await?;
    let mut enter = internal(node, "enter");
    enter.arg("--").args(command);
    let program = "windlass".to_owned();
    let started = among(node, || enter.spawn())?;
    let mut child = started.map_err(|source| Error::Start { program, source })?;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await;
    let status = ended.map_err(|e| Error::Other(e.to_string()))?;
    status.map_err(|e| Error::Other(format!("waiting for the command: {e}")))
}

/// The exit code by which a shell would report how a command ended.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// The machine's table of hosts with the node's own name, which whoever looks it up need not ask a name server for.
fn write_hosts(node: &Cluster) -> Result<PathBuf, Error> {
    let machines = fs::read_to_string(HOSTS).unwrap_or_default();
    let path = node.root.join("etc/hosts");
    let text = format!("{machines}\n{} {}\n", node.settings.address, node.settings.node_name);
    fs::write(&path, text).map_err(Error::file("writing", &path))?;
    Ok(path)
}

/// Becomes another program inside of a node, among whose processes the caller is already; returns only if that fails.
pub fn enter(node: &Cluster, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::Other("no command is given to run in the node".to_owned());
    };
    if let Err(error) = enter_namespaces(node) {
        return error;
    }
    let source = Command::new(program).args(arguments).current_dir(Path::new("/")).exec();
    Error::Start { program: program.to_string_lossy().into_owned(), source }
}

fn enter_namespaces(node: &Cluster) -> Result<(), Error> {
    let holder = holder(node).ok_or_else(|| not_running(node))?;
    space::enter(holder)?;
    space::wired();
    Ok(())
}

/// The processes that have the namespaces of a node, apart from those that have the machine's.
pub(crate) fn inhabitants(node: &Cluster) -> Vec<i32> {
    let known = node.roles().iter().find_map(|role| role.running(node));
    known.map(space::inhabitants).unwrap_or_default()
}
