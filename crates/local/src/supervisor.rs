//! Keeps the cluster's processes running. The supervisor itself is kept running by the processes it starts: one
//! of them that sees it gone starts another, which adopts what runs.

use std::time::Duration;

use telemetry::Recorder;

use crate::{
    Cluster, Error,
    process::{self, Role},
};

/// A process that lived this long has come up: its next failure starts a new back-off.
const SETTLED: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(10);

/// Runs until it is asked to stop, and then stops the others.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id().cast_signed();
    // Of two that are started at once the one in the pid file stays.
    if Role::Supervisor.running(&cluster).is_some_and(|pid| pid != own) {
        return Ok(());
    }
    Role::Supervisor.record(&cluster, own)?;
    for role in Role::SUPERVISED {
        let cluster = cluster.clone();
        tasks.spawn_until_shutdown(role.name(), async move { keep(role, &cluster).await });
    }
    let renewing =
        crate::certs::keep_renewed(cluster.clone(), std::sync::Arc::new(rt::SystemClock));
    tasks.spawn_until_shutdown("certificates", renewing);
    tasks.shutdown().stopping().await;
    // `down` ends the others itself: it needs the runtime until the Pods are gone.
    if cluster.run().join("stopping").exists() {
        return Ok(());
    }
    // The agent first, so that it does not report what ends on purpose; the runtime last.
    for role in [Role::Agent, Role::ControlPlane, Role::Containerd] {
        if let Some(pid) = role.running(&cluster) {
            process::stop(pid, GRACE).await;
        }
    }
    Ok(())
}

async fn keep(role: Role, cluster: &Cluster) {
    let recorder = Recorder::new(&cluster.root, "supervisor");
    let mut backoff = rt::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let started = tokio::time::Instant::now();
        if let Some(pid) = role.running(cluster) {
            process::exited(pid).await;
        } else {
            let step = recorder.begin(format!("start {}", role.name()));
            match role.start(cluster) {
                Ok(mut child) => {
                    step.done();
                    process::exited(child.id().cast_signed()).await;
                    let _ = child.wait();
                }
                Err(error) => drop(step.failed(error)),
            }
        }
        if started.elapsed() > SETTLED {
            backoff.reset();
        }
        tracing::warn!(process = role.name(), "ended; starting it again");
        tokio::time::sleep(backoff.next(0.0)).await;
    }
}

/// Starts another supervisor when this one's is gone; run by the processes that it starts.
pub(crate) async fn mind(cluster: Cluster) {
    let mut started: Option<std::process::Child> = None;
    loop {
        match Role::Supervisor.running(&cluster) {
            Some(pid) => {
                process::exited(pid).await;
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
