//! A node's namespaces: one process holds them, and the node's other processes enter them.
//!
//! The holder is PID 1 of the node's PID namespace. It reaps orphans, and the kernel kills all other processes with it.
//! Only the parent of a process can start it inside that namespace.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use bootstrap_core::Layout;
use instances::space::{self, HOSTS, MountNamespace, Space};
use tokio::time::Instant;

use crate::{
    certs,
    cluster::Cluster,
    error::Error,
    process::{among, holder, internal, not_running},
    replicated,
};

/// Directories that nodes must not share: names of network namespaces, and results of CNI plugins.
const PRIVATE: [&str; 2] = ["/run/netns", "/var/lib/cni"];
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the process `holder` has created the namespaces.
pub(crate) fn ready(holder: i32) -> Result<(), Error> {
    Ok(space::ready(holder)?)
}

/// Runs the process that holds a node's namespaces.
pub fn hold(node: &Cluster) -> Result<(), Error> {
    make(node)?;
    sys::pause().map_err(|source| Error::Wait { subject: "a signal", source })
}

fn make(node: &Cluster) -> Result<(), Error> {
    let mut bound = vec![(write_hosts(node)?, PathBuf::from(HOSTS))];
    let mounts = node.settings.extra_mounts.iter();
    bound.extend(crate::paths::mounts(node)?);
    bound.extend(mounts.map(|mount| (mount.host_path.clone(), mount.container_path.clone())));
    let programs = node.binary().parent().map(Path::to_owned);
    let timeline = telemetry::timeline::directory(node.home());
    fs::create_dir_all(&timeline).map_err(Error::file("creating", &timeline))?;
    let same = [Some(node.root.clone()), programs.clone(), Some(timeline)].into_iter().flatten();
    let mut kept: Vec<_> = same.map(|path| (path.clone(), path)).collect();
    kept.push((certs::shared_directory(node), Layout::under(node.home()).kubernetes));
    if node.is_replicated() {
        kept.push(replicated::etcd_mount(node)?);
    }
    // The cluster's root has keys, objects, settings, sockets, and other nodes.
    let hidden = vec![node.home().to_owned()];
    let hostname = node.settings.node_name.clone();
    let private = PRIVATE.map(PathBuf::from).into();
    let read_only = programs.into_iter().collect();
    Ok(space::make(&Space { hostname, private, bound, read_only, hidden, kept })?)
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

/// Runs a command inside a node with the caller's terminal, and returns its exit status.
pub(crate) async fn run(node: &Cluster, command: &[OsString]) -> Result<ExitStatus, Error> {
    wait_for_holder(node).await?;
    let mut enter = internal(node, "enter");
    enter.arg("--").args(command);
    let program = "windlass".to_owned();
    let started = among(node, || enter.spawn())?;
    let mut child = started.map_err(|source| Error::Start { program, source })?;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await;
    let status =
        ended.map_err(|source| Error::Task { operation: "waiting for the command", source })?;
    status.map_err(|source| Error::Wait { subject: "the command", source })
}

/// Returns the exit code that a shell would report.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Writes a node's hosts file: the host's, and the node's name, which then needs no DNS.
fn write_hosts(node: &Cluster) -> Result<PathBuf, Error> {
    let machines = fs::read_to_string(HOSTS).unwrap_or_default();
    let path = node.root.join("etc/hosts");
    let text = format!("{machines}\n{} {}\n", node.settings.address, node.settings.node_name);
    fs::write(&path, text).map_err(Error::file("writing", &path))?;
    Ok(path)
}

/// Enters a node's namespaces and executes a command. For a further node, the caller must be in its PID namespace.
/// Returns only on failure.
pub fn enter(node: &Cluster, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::NoCommand;
    };
    let entered = if node.is_member() { enter_namespaces(node) } else { crate::paths::enter(node) };
    if let Err(error) = entered {
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

/// Opens the mount namespace of a node's processes; `None` if none of them runs.
pub(crate) fn mounts(node: &Cluster) -> Option<MountNamespace> {
    node.roles().iter().find_map(|role| role.running(node)).and_then(MountNamespace::of)
}
