//! Stops a node as a loss of power would, and starts it again.

use std::{fs, time::Duration};

use nix::{sys::signal::Signal, unistd::Pid};
use tokio::time::{Instant, sleep};

use super::{join::tell_supervisor, space};
use crate::{Cluster, Error};

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// Ends every process of a node, its Pods' among them, and keeps it so until it is started.
pub(crate) async fn stop(node: &Cluster) -> Result<(), Error> {
    let mark = node.stopped();
    fs::write(&mark, "").map_err(Error::file("writing", &mark))?;
    end(node).await
}

/// Ends every process of a node. The supervisor starts them again where the node is not marked as stopped.
pub(crate) async fn end(node: &Cluster) -> Result<(), Error> {
    let cgroups = sys::cgroup::detect();
    let start = Instant::now();
    loop {
        // The kernel ends the others with the holder. Those of a holder that has ended are known by their namespaces.
        let mut targets = space::inhabitants(node);
        targets.extend(node.roles().iter().filter_map(|role| role.running(node)));
        if targets.is_empty() {
            break;
        }
        for pid in targets {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Err(error) = cgroups.kill(&node.cgroup()) {
            tracing::warn!(%error, "ending a node's Pods");
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Other(format!(
                "processes of node {} do not end; `ps` shows which, and what they wait for",
                node.settings.node_name
            )));
        }
        sleep(LOOK).await;
    }
    // What a runtime keeps about running containers does not outlive a machine's start.
    let state = node.run().join("containerd");
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("removing", &state)(error))
        }
        _ => Ok(()),
    }
}

/// Lets the supervisor start a node that was stopped.
pub(crate) fn start(cluster: &Cluster, node: &Cluster) -> Result<(), Error> {
    let mark = node.stopped();
    match fs::remove_file(&mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::file("removing", &mark)(error));
        }
        _ => {}
    }
    tell_supervisor(cluster);
    Ok(())
}
