//! Pod lifecycle event generator (PLEG): detects changes in the container runtime, and Pods in it that no source has.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cri::RuntimePod;
use pod_core::PodRegistry;
use tokio::{sync::watch, time::Instant};

use crate::{context::Context, pods::Pods};

/// The interval of full lists if the runtime has no event stream.
const RELIST: Duration = Duration::from_secs(1);
/// The interval of full lists if the runtime has an event stream.
const RARE_RELIST: Duration = Duration::from_secs(30);

/// Follows the runtime and wakes workers of changed Pods. Once all `sources` have been read, ends Pods that none of
/// them has.
pub(crate) async fn run(
    ctx: Arc<Context>,
    pods: Pods,
    sources: watch::Receiver<bool>,
    listing_error: watch::Sender<Option<String>>,
) {
    let mut before: BTreeMap<String, RuntimePod> = BTreeMap::new();
    let mut events = ctx.cri.container_events().await.ok();
    let mut last: Option<Instant> = None;
    loop {
        let began = Instant::now();
        let listed = ctx.cri.list_pods().await;
        ctx.metrics.relisted(began, last.replace(began));
        match listed {
            Ok(now) => {
                listing_error.send_replace(None);
                for (uid, pod) in &now {
                    if before.get(uid) != Some(pod) {
                        pods.wake(uid);
                    }
                    if *sources.borrow() && !pods.has_pod(uid) {
                        pods.remove_orphan(uid, pod);
                    }
                }
                before.keys().filter(|uid| !now.contains_key(*uid)).for_each(|uid| pods.wake(uid));
                before = now;
            }
            Err(error) => {
                listing_error.send_replace(Some(error.to_string()));
                tracing::warn!(%error, "list the runtime's sandboxes and containers");
            }
        }
        match &mut events {
            None => tokio::time::sleep(RELIST).await,
            Some(stream) => {
                if !wake_pods(stream, &pods, Instant::now() + RARE_RELIST).await {
                    tokio::time::sleep(RELIST).await;
                    events = ctx.cri.container_events().await.ok();
                }
            }
        }
    }
}

/// Wakes Pods named by runtime events until `until`. Returns `false` if the stream has ended.
async fn wake_pods(stream: &mut cri::Events, pods: &Pods, until: Instant) -> bool {
    loop {
        match tokio::time::timeout_at(until, stream.message()).await {
            Err(_) => return true,
            Ok(Ok(Some(event))) => {
                let metadata = event.pod_sandbox_status.and_then(|s| s.metadata);
                match metadata {
                    Some(metadata) => pods.wake(&metadata.uid),
                    None => return true,
                }
            }
            Ok(Ok(None) | Err(_)) => return false,
        }
    }
}
