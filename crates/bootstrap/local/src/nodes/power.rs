//! Stops a node like a power failure, and starts it again.

use std::{fs, time::Duration};

use instances::space::MountNamespace;
use nix::{sys::signal::Signal, unistd::Pid};
use tokio::time::{Instant, sleep};

use super::space;
use crate::{cluster::Cluster, error::Error, process::notify_supervisor};

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// Kills every process of a node and of its Pods, and marks the node as stopped.
pub(crate) async fn stop(node: &Cluster) -> Result<(), Error> {
    let mark = node.stopped();
    fs::write(&mark, "").map_err(Error::file("writing", &mark))?;
    kill_all(node).await
}

/// Kills every process of a node. The supervisor restarts them unless the node is marked as stopped.
pub(crate) async fn kill_all(node: &Cluster) -> Result<(), Error> {
    let cgroups = sys::cgroup::detect();
    let start = Instant::now();
    let mut mounts = None;
    loop {
        // The kernel kills all processes with the holder. Survivors of an earlier holder are found by their namespaces.
        mounts = space::mounts(node).or(mounts);
        let mut targets = mounts.as_ref().map(MountNamespace::processes).unwrap_or_default();
        targets.extend(node.roles().iter().filter_map(|role| role.running(node)));
        if targets.is_empty() {
            break;
        }
        for pid in targets {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Err(error) = cgroups.kill(&node.cgroup()) {
            tracing::warn!(%error, "cannot kill the node's Pods");
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Unkillable(node.settings.node_name.clone()));
        }
        sleep(LOOK).await;
    }
    drop(mounts);
    // As after a reboot, the runtime's state of running containers is lost.
    let state = node.run().join("containerd");
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("removing", &state)(error))
        }
        _ => Ok(()),
    }
}

/// Removes the mark of a stopped node and lets the supervisor start it.
pub(crate) fn start(cluster: &Cluster, node: &Cluster) -> Result<(), Error> {
    let mark = node.stopped();
    match fs::remove_file(&mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::file("removing", &mark)(error));
        }
        _ => {}
    }
    notify_supervisor(cluster);
    Ok(())
}
