//! Node-pressure eviction: reports pressure conditions, removes unused images, then evicts Pods one at a time. The
//! ranking of Pods and the thresholds are in `pod_core::evict`.

mod measure;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    Ending, PodRegistry,
    evict::{self, Reading, Threshold, Watcher},
};

use crate::{context::Context, housekeeping, pods::Pods};

/// The interval between two measurements, as upstream.
const INTERVAL: Duration = Duration::from_secs(10);
/// The termination grace period of a Pod evicted by a hard threshold.
const HARD_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Measures the node and relieves pressure until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods) {
    let settings = &ctx.settings.eviction;
    let mut watcher = Watcher::new(settings.thresholds.clone(), settings.transition);
    loop {
        let shortage = watcher.look(&measure::readings(&ctx).await, ctx.now());
        ctx.pressures.set(shortage.conditions);
        let gone = match &shortage.act {
            Some((threshold, reading)) => reclaim(&ctx, &pods, threshold, *reading).await,
            None => false,
        };
        if !gone && ctx.settings.limit_storage {
            limit_storage(&ctx, &pods).await;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reclaims the resource that is short. Returns `true` if a Pod was evicted.
async fn reclaim(ctx: &Context, pods: &Pods, threshold: &Threshold, reading: Reading) -> bool {
    let signal = threshold.signal;
    let text = format!("Attempting to reclaim {}", signal.resource());
    ctx.events.of_node(&ctx.settings.node_name, "Warning", "EvictionThresholdMet", text);
    if signal.is_disk() {
        if let Err(error) = housekeeping::remove_unused_images(ctx).await {
            tracing::warn!(%error, "remove unused images");
        }
        let now = measure::readings(ctx).await;
        let watcher = &mut Watcher::new(vec![threshold.clone()], Duration::ZERO);
        if watcher.look(&now, ctx.now()).conditions.is_empty() {
            return false;
        }
    }
    let active = pods.active();
    let used = measure::usage(ctx, signal, &active).await;
    let Some(first) = evict::rank(signal, used).into_iter().next() else {
        tracing::warn!(signal = signal.as_str(), "no Pod may be evicted to free more");
        return false;
    };
    let ending = evict::ending(threshold, reading, &first);
    let grace = match threshold.grace {
        None => HARD_GRACE_PERIOD,
        Some(_) => ctx.settings.eviction.grace,
    };
    evict_pod(ctx, pods, first.pod, ending, grace);
    true
}

/// Evicts Pods that exceed their limits of local ephemeral storage.
async fn limit_storage(ctx: &Context, pods: &Pods) {
    let limited: Vec<Arc<Pod>> =
        pods.active().into_iter().filter(|pod| evict::limits_storage(pod)).collect();
    if limited.is_empty() {
        return;
    }
    let storage = measure::storage(ctx, &limited).await;
    for pod in &limited {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let over = storage.get(uid).and_then(|used| evict::over_storage_limit(pod, used));
        if let Some(ending) = over.filter(|_| !pod_core::admit::is_critical(pod)) {
            evict_pod(ctx, pods, pod, ending, HARD_GRACE_PERIOD);
        }
    }
}

fn evict_pod(ctx: &Context, pods: &Pods, pod: &Pod, ending: Ending, grace: Duration) {
    ctx.events.warn(pod, "Evicted", ending.message.clone().unwrap_or_default());
    pods.evict(pod.metadata.uid.as_deref().unwrap_or_default(), ending, grace);
}
