//! Graceful shutdown of the node: delays a shutdown of the machine until its Pods have ended, by rising priority.

mod bus;
mod logind;
mod message;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kubelet_config::ShutdownPeriod;
use pod_core::{Ending, Phase, PodRegistry};
use tokio::sync::watch;

use self::logind::{Logind, LogindError, Paths};
use crate::{context::Context, pods::Pods};

/// The delay before a lost connection to logind is opened again, as upstream.
const PAUSE: Duration = Duration::from_secs(1);

/// The parts of the kubelet that a shutdown acts on.
trait Node: Send + Sync {
    /// Returns the Pods that run.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// Ends a Pod. Returns a receiver of `true` once it is torn down, or `None` if it is gone.
    fn end(&self, pod: &Pod, ending: Ending, grace: Duration) -> Option<watch::Receiver<bool>>;
    /// Records that a shutdown begins or is cancelled.
    fn set_shutting_down(&self, begins: bool);
}

/// The Pods of this kubelet.
struct KubeletNode {
    ctx: Arc<Context>,
    pods: Pods,
}

impl Node for KubeletNode {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.active()
    }

    fn end(&self, pod: &Pod, ending: Ending, grace: Duration) -> Option<watch::Receiver<bool>> {
        self.pods.evict(pod.metadata.uid.as_deref().unwrap_or_default(), ending, grace)
    }

    fn set_shutting_down(&self, begins: bool) {
        let event = if begins { "event" } else { "cancellation" };
        let text = format!("Shutdown manager detected shutdown {event}");
        let name = &self.ctx.settings.node_name;
        self.ctx.events.of_node(name, "Normal", "NodeShutdown", text);
        self.ctx.shutting_down.send_replace(begins);
    }
}

/// Follows logind and ends Pods when the machine shuts down, until the kubelet stops.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods) {
    let periods = ctx.settings.shutdown.clone();
    let node = KubeletNode { ctx, pods };
    let mut reported = String::new();
    loop {
        if let Err(error) = follow(&node, &periods, &Paths::default()).await {
            let text = error.to_string();
            if text != reported {
                tracing::error!(%error, "watch for a shutdown of the machine, which would kill Pods at once; retrying");
                reported = text;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Handles the events of one connection to logind.
async fn follow(
    node: &dyn Node,
    periods: &[ShutdownPeriod],
    paths: &Paths,
) -> Result<(), LogindError> {
    let delay =
        periods.iter().map(|period| period.grace).fold(Duration::ZERO, Duration::saturating_add);
    let mut logind = Logind::connect(paths, delay).await?;
    loop {
        let begins = logind.event().await?;
        node.set_shutting_down(begins);
        if begins {
            end_pods(node, periods).await;
            logind.release();
        } else {
            logind.inhibit().await?;
        }
    }
}

/// Ends all Pods, those of low priority first. Each group has its period of time.
async fn end_pods(node: &dyn Node, periods: &[ShutdownPeriod]) {
    let mut groups: Vec<Vec<Arc<Pod>>> = vec![Vec::new(); periods.len()];
    for pod in node.active() {
        if let Some(group) = groups.get_mut(group_of(&pod, periods)) {
            group.push(pod);
        }
    }
    for (period, pods) in periods.iter().zip(groups) {
        let ended = pods.iter().filter_map(|pod| node.end(pod, ending(), period.grace));
        let torn_down = ended.map(|mut torn_down| async move {
            // An error means that the Pod's worker is gone, and with it the Pod.
            drop(torn_down.wait_for(|done| *done).await);
        });
        if tokio::time::timeout(period.grace, join_all(torn_down)).await.is_err() {
            tracing::warn!(
                priority = period.priority,
                "Pods did not end in time before the node's shutdown"
            );
        }
    }
}

/// Returns the index of the period for a Pod: the last one that begins at its priority or below, or else the first.
fn group_of(pod: &Pod, periods: &[ShutdownPeriod]) -> usize {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    periods.iter().rposition(|period| period.priority <= priority).unwrap_or(0)
}

fn ending() -> Ending {
    Ending {
        phase: Phase::Failed,
        reason: Some("Terminated".to_owned()),
        message: Some("Pod was terminated in response to imminent node shutdown.".to_owned()),
        disrupted: true,
    }
}
