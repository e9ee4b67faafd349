//! A node's namespaces, which a process holds and every other process of the node enters.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use instances::space::{self, HOSTS, Space};
use tokio::time::Instant;

use crate::{Cluster, Error, process::Role, replicated};

/// What processes of a node must not share with those of other nodes: names of network namespaces, the runtime's
/// sockets and the results of its network plugins.
const PRIVATE: [&str; 3] = ["/run/netns", "/run/containerd", "/var/lib/cni"];
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the process that holds the namespaces has made them.
pub(crate) fn ready(holder: i32) -> Result<(), Error> {
    Ok(space::ready(holder)?)
}

/// The whole life of the process that holds a node's namespaces. Those that outlived an earlier one are adopted, so
/// that its death ends nothing.
pub fn hold(node: &Cluster) -> Result<(), Error> {
    let survivor = [Role::Containerd, Role::Agent].iter().find_map(|role| role.running(node));
    match survivor.filter(|pid| space::is_inside(*pid)) {
        Some(pid) => space::enter(pid)?,
        None => make(node)?,
    }
    sys::pause().map_err(|e| Error::Other(format!("waiting: {e}")))
}

fn make(node: &Cluster) -> Result<(), Error> {
    let mut bound = vec![(write_hosts(node)?, PathBuf::from(HOSTS))];
    if node.is_replicated() {
        bound.push(replicated::data(node)?);
    }
    let hostname = node.settings.node_name.clone();
    let private = PRIVATE.map(PathBuf::from).into();
    Ok(space::make(&Space { hostname, private, bound, hidden: Vec::new() })?)
}

/// The machine's table of hosts with the node's own name, which whoever looks it up need not ask a name server for.
fn write_hosts(node: &Cluster) -> Result<PathBuf, Error> {
    let machines = fs::read_to_string(HOSTS).unwrap_or_default();
    let path = node.root.join("etc/hosts");
    let text = format!("{machines}\n{} {}\n", node.settings.address, node.settings.node_name);
    fs::write(&path, text).map_err(Error::file("writing", &path))?;
    Ok(path)
}

/// Becomes another program inside of a node; returns only if that fails.
pub fn enter(node: &Cluster, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::Other("no command is given to run in the node".to_owned());
    };
    if let Err(error) = enter_when_ready(node) {
        return error;
    }
    let source = Command::new(program).args(arguments).current_dir(Path::new("/")).exec();
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
    space::enter(holder)?;
    space::wired();
    Ok(())
}

/// The processes that have the namespaces of a node, apart from those that have the machine's.
pub(crate) fn inhabitants(node: &Cluster) -> Vec<i32> {
    let known = node.roles().iter().find_map(|role| role.running(node));
    known.map(space::inhabitants).unwrap_or_default()
}
