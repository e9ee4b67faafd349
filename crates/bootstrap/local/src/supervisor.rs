//! Keeps the cluster's processes running. Some of these processes restart the supervisor when it ends, and the new
//! supervisor adopts running processes.

use std::{collections::BTreeSet, time::Duration};

use sys::supervision::{self, SupervisedProcess};
use telemetry::Recorder;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    cluster::Cluster,
    error::Error,
    health,
    nodes::{link, space},
    process::{Role, start_supervisor},
};

const GRACE: Duration = Duration::from_secs(10);
/// The delay before connecting a node is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until shutdown, and then stops the other processes.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id().cast_signed();
    // A supervisor of an earlier release has no lock.
    if Role::Supervisor.running(&cluster).is_some_and(|pid| pid != own) {
        return Ok(());
    }
    Role::Supervisor.record(&cluster, own)?;
    let (look, changes) = watch::channel(());
    keep_all(&cluster, &changes, tasks);
    let (renewed, changed) = (cluster.clone(), changes.clone());
    let (further, nodes) = (cluster.clone(), tasks.clone());
    tasks.spawn_until_shutdown("nodes", async move {
        follow_nodes(&further, look, changes, &nodes).await;
    });
    tasks.keep("certificates", move || {
        let clock = std::sync::Arc::new(rt::SystemClock);
        crate::certs::keep_renewed(renewed.clone(), clock, changed.clone())
    });
    let followed = cluster.clone();
    tasks.keep("manifests", move || crate::manifests::follow(followed.clone()));
    tasks.shutdown().stopping().await;
    // `down` stops the others itself, because it needs the runtime until the Pods are removed.
    if cluster.run().join("stopping").exists() {
        return Ok(());
    }
    // The agent ends first, so that it reports no failures, and the runtime last. A node's holder stays, because its
    // end would kill the node's Pods; the next supervisor adopts it.
    for node in cluster.members()?.iter().chain([&cluster]) {
        for role in node.roles().iter().rev().filter(|role| **role != Role::Holder) {
            if let Some(pid) = role.running(node) {
                supervision::stop(pid, GRACE).await;
            }
        }
    }
    Ok(())
}

fn keep_all(node: &Cluster, changes: &watch::Receiver<()>, tasks: &rt::Tasks) {
    for role in node.roles() {
        let (node, changes) = (node.clone(), changes.clone());
        let name = format!("{} of {}", role.name(), node.settings.node_name);
        tasks.spawn_until_shutdown(&name, async move {
            let keeping = || keep_running(*role, &node, changes.clone());
            rt::until_it_ends("supervisor", role.name(), keeping).await;
        });
    }
}

/// Keeps further nodes running, both existing ones and new ones. A process that changes nodes or their marker files
/// sends SIGHUP afterwards.
async fn follow_nodes(
    cluster: &Cluster,
    look: watch::Sender<()>,
    changes: watch::Receiver<()>,
    tasks: &rt::Tasks,
) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::error!(%error, "cannot listen for SIGHUP: changes of nodes go unnoticed");
            return;
        }
    };
    let mut supervised = BTreeSet::new();
    loop {
        match cluster.members() {
            Ok(nodes) => {
                for node in nodes.iter().filter(|node| supervised.insert(node.root.clone())) {
                    keep_all(node, &changes, tasks);
                }
            }
            Err(error) => tracing::error!(%error, "cannot read the cluster's nodes"),
        }
        look.send_replace(());
        if hangups.recv().await.is_none() {
            return;
        }
    }
}

/// Connects a further node, whose namespaces the process `holder` has, to the link.
async fn connect(node: &Cluster, holder: i32) -> Result<(), Error> {
    let node = node.clone();
    let work = move || {
        space::ready(holder)?;
        let cluster = Cluster::load(&node.name, node.home())?;
        link::connect(&cluster, &node, holder)
    };
    let connected = tokio::task::spawn_blocking(work).await;
    connected.map_err(|source| Error::Task { operation: "connecting the node", source })?
}

async fn keep_running(role: Role, cluster: &Cluster, mut changes: watch::Receiver<()>) {
    let recorder = Recorder::new(cluster.home(), "supervisor");
    let node = &cluster.settings.node_name;
    let mut process = SupervisedProcess::new(role.name(), role.pid_file(cluster));
    loop {
        changes.borrow_and_update();
        if !role.is_wanted(cluster) && role.running(cluster).is_none() {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        let absent = role.needs_holder(cluster) && role.running(cluster).is_none();
        if absent && let Err(error) = space::wait_for_holder(cluster).await {
            tracing::warn!(%error, node, role = role.name(), "the node has no namespaces yet");
            continue;
        }
        let start = || {
            let step = recorder.begin(format!("start {} of {node}", role.name()));
            let started = role.start(cluster);
            match &started {
                Ok(_) => step.done(),
                Err(error) => step.failed(error),
            };
            started
        };
        let up = async |pid| {
            while role == Role::Holder && role.running(cluster) == Some(pid) {
                let Err(error) = connect(cluster, pid).await else { break };
                tracing::error!(%error, node, "cannot connect the node");
                tokio::time::sleep(AGAIN).await;
            }
        };
        let checked = cluster.clone();
        let ask = move || {
            let cluster = checked.clone();
            async move { health::check(role, &cluster).await }
        };
        let hung = sys::liveness::unresponsive(role.name(), ask);
        process.live(start, up, hung).await;
    }
}

/// Starts a new supervisor when the old one ends. Runs in processes that the supervisor starts.
pub(crate) async fn watch_supervisor(cluster: Cluster) {
    let mut started: Option<std::process::Child> = None;
    loop {
        match Role::Supervisor.running(&cluster) {
            Some(pid) => {
                supervision::exited(pid).await;
                started.take().map(|mut child| child.wait());
            }
            None if cluster.run().join("stopping").exists() => {}
            None => match start_supervisor(&cluster) {
                Ok(Some(child)) => started = Some(child),
                // Another process starts it.
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "cannot start the supervisor"),
            },
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
