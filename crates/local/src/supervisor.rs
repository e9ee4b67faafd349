//! Keeps the cluster's processes running. The supervisor itself is kept running by the processes it starts: one
//! of them that sees it gone starts another, which adopts what runs.

use std::{collections::BTreeSet, time::Duration};

use sys::kept::{self, Kept};
use telemetry::Recorder;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    Cluster, Error, health,
    nodes::{link, space},
    process::Role,
};

const GRACE: Duration = Duration::from_secs(10);
/// How long to wait before a node that could not be connected is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until it is asked to stop, and then stops the others.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id().cast_signed();
    // Of two that are started at once the one in the pid file stays.
    if Role::Supervisor.running(&cluster).is_some_and(|pid| pid != own) {
        return Ok(());
    }
    Role::Supervisor.record(&cluster, own)?;
    let (look, wanted) = watch::channel(());
    keep_all(&cluster, &wanted, tasks);
    let (further, nodes) = (cluster.clone(), tasks.clone());
    tasks.spawn_until_shutdown("nodes", async move {
        follow_nodes(&further, look, wanted, &nodes).await;
    });
    let renewed = cluster.clone();
    tasks.keep("certificates", move || {
        crate::certs::keep_renewed(renewed.clone(), std::sync::Arc::new(rt::SystemClock))
    });
    tasks.shutdown().stopping().await;
    // `down` ends the others itself: it needs the runtime until the Pods are gone.
    if cluster.run().join("stopping").exists() {
        return Ok(());
    }
    // The agent first, so that it does not report what ends on purpose; the runtime last. The holder of a node stays: its
    // end would be that of the node's Pods, and the next supervisor adopts it.
    for node in cluster.members()?.iter().chain([&cluster]) {
        for role in node.roles().iter().rev().filter(|role| **role != Role::Holder) {
            if let Some(pid) = role.running(node) {
                kept::stop(pid, GRACE).await;
            }
        }
    }
    Ok(())
}

fn keep_all(node: &Cluster, wanted: &watch::Receiver<()>, tasks: &rt::Tasks) {
    for role in node.roles() {
        let (node, wanted) = (node.clone(), wanted.clone());
        let name = format!("{} of {}", role.name(), node.settings.node_name);
        tasks.spawn_until_shutdown(&name, async move {
            let keeping = || keep(*role, &node, wanted.clone());
            rt::until_it_ends("supervisor", role.name(), keeping).await;
        });
    }
}

/// Keeps further nodes running, too: those that are there, and those that are made later. Who changes what is wanted
/// writes it down, and then sends SIGHUP.
async fn follow_nodes(
    cluster: &Cluster,
    look: watch::Sender<()>,
    wanted: watch::Receiver<()>,
    tasks: &rt::Tasks,
) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::error!(%error, "listening for SIGHUP: changes of nodes are not seen");
            return;
        }
    };
    let mut kept = BTreeSet::new();
    loop {
        match cluster.members() {
            Ok(nodes) => {
                for node in nodes.iter().filter(|node| kept.insert(node.root.clone())) {
                    keep_all(node, &wanted, tasks);
                }
            }
            Err(error) => tracing::error!(%error, "reading the cluster's nodes"),
        }
        look.send_replace(());
        if hangups.recv().await.is_none() {
            return;
        }
    }
}

/// Connects a further node, whose namespaces the process holds, to the others.
async fn connect(node: &Cluster, holder: i32) -> Result<(), Error> {
    let node = node.clone();
    let work = move || {
        space::ready(holder)?;
        let cluster = Cluster::load(&node.name, node.home())?;
        link::connect(&cluster, &node, holder)
    };
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::Other(e.to_string()))?
}

async fn keep(role: Role, cluster: &Cluster, mut wanted: watch::Receiver<()>) {
    let recorder = Recorder::new(cluster.home(), "supervisor");
    let node = &cluster.settings.node_name;
    let mut kept = Kept::new(role.name(), role.pid_file(cluster));
    loop {
        wanted.borrow_and_update();
        if !role.is_wanted(cluster) && role.running(cluster).is_none() {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let absent = role.needs_holder(cluster) && role.running(cluster).is_none();
        if absent && let Err(error) = space::wait_for_holder(cluster).await {
            tracing::warn!(%error, node, role = role.name(), "waiting for the node's namespaces");
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
                tracing::error!(%error, node, "connecting the node");
                tokio::time::sleep(AGAIN).await;
            }
        };
        let asked = cluster.clone();
        let ask = move || {
            let cluster = asked.clone();
            async move { health::ask(role, &cluster).await }
        };
        let hung = sys::liveness::unresponsive(role.name(), ask);
        kept.live(start, up, hung).await;
    }
}

/// Starts another supervisor when this one's is gone; run by the processes that it starts.
pub(crate) async fn mind(cluster: Cluster) {
    let mut started: Option<std::process::Child> = None;
    loop {
        match Role::Supervisor.running(&cluster) {
            Some(pid) => {
                kept::exited(pid).await;
                started.take().map(|mut child| child.wait());
            }
            // Both may see it gone: the one that comes second finds the first's and ends.
            None if cluster.run().join("stopping").exists() => {}
            None => match Role::Supervisor.start(&cluster) {
                Ok(child) => started = Some(child),
                Err(error) => tracing::error!(%error, "starting the supervisor"),
            },
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
