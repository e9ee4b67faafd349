//! Noticing what happens in the runtime, and what is in it that nobody wants.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    context::Context,
    pods::Pods,
    runtime::{self, Known},
};

/// How often the runtime is asked for everything when it does not say itself that something happened.
const RELIST: Duration = Duration::from_secs(1);
/// How often it is asked nevertheless when it does.
const RARE_RELIST: Duration = Duration::from_secs(30);

/// Watches the runtime; ends Pods that no source has once `sources` says that all have been read.
pub(crate) async fn run(
    ctx: Arc<Context>,
    pods: Pods,
    sources: watch::Receiver<bool>,
    healthy: watch::Sender<Option<String>>,
) {
    let mut before: BTreeMap<String, Known> = BTreeMap::new();
    let mut events = ctx.cri.container_events().await.ok();
    loop {
        match runtime::everything(&ctx).await {
            Ok(now) => {
                healthy.send_replace(None);
                for (uid, known) in &now {
                    if before.get(uid) != Some(known) {
                        pods.wake(uid);
                    }
                    if *sources.borrow() && !pods.knows(uid) {
                        pods.orphan(uid, known);
                    }
                }
                before.keys().filter(|uid| !now.contains_key(*uid)).for_each(|uid| pods.wake(uid));
                before = now;
            }
            Err(error) => {
                healthy.send_replace(Some(error.to_string()));
                tracing::warn!(%error, "list what the runtime has");
            }
        }
        match &mut events {
            None => tokio::time::sleep(RELIST).await,
            Some(stream) => {
                if !follow(stream, &pods, Instant::now() + RARE_RELIST).await {
                    tokio::time::sleep(RELIST).await;
                    events = ctx.cri.container_events().await.ok();
                }
            }
        }
    }
}

/// Wakes Pods on the runtime's word until a time; returns whether the runtime goes on telling.
async fn follow(stream: &mut cri::Events, pods: &Pods, until: Instant) -> bool {
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
