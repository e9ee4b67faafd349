//! Node-pressure eviction: reports pressure conditions, removes unused images, then evicts Pods one at a time. The
//! ranking of Pods and the thresholds are in `pod_core::evict`.

mod measure;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    Ending, PodRegistry,
    evict::{self, Reading, Threshold, Watcher},
};
use tokio::sync::watch;

use crate::{context::Context, housekeeping, pods::Pods};

/// The interval between two measurements, as upstream.
const INTERVAL: Duration = Duration::from_secs(10);
/// The termination grace period of a Pod evicted by a hard threshold.
const HARD_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The longest wait for the cleanup of evicted Pods before the next measurement, as upstream.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The cleanup of an evicted Pod: becomes `true` when nothing of the Pod uses the node's resources any more.
type Cleanup = watch::Receiver<bool>;

/// Measures the node and relieves pressure until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods) {
    let settings = &ctx.settings.eviction;
    let mut watcher = Watcher::new(settings.thresholds.clone(), settings.transition);
    loop {
        let shortage = watcher.look(&measure::readings(&ctx).await, ctx.now());
        ctx.pressures.set(shortage.conditions);
        let mut cleanups = Vec::new();
        if ctx.settings.limit_storage {
            cleanups = limit_storage(&ctx, &pods).await;
        }
        if let (true, Some((threshold, reading))) = (cleanups.is_empty(), &shortage.act) {
            cleanups.extend(reclaim(&ctx, &pods, threshold, *reading).await);
        }
        wait(cleanups).await;
    }
}

/// Waits until the next measurement is due: after the cleanup of evicted Pods, or after the interval if there are none.
async fn wait(cleanups: Vec<Cleanup>) {
    if cleanups.is_empty() {
        return tokio::time::sleep(INTERVAL).await;
    }
    let all = async {
        for mut cleanup in cleanups {
            // An error means that the Pod's worker is gone, and with it the Pod.
            drop(cleanup.wait_for(|done| *done).await);
        }
    };
    if tokio::time::timeout(CLEANUP_TIMEOUT, all).await.is_err() {
        tracing::warn!("evicted Pods still use the node's resources; measuring again");
    }
}

/// Reclaims the resource that is short. Returns the cleanup of the Pod that was evicted, if any was.
async fn reclaim(
    ctx: &Context,
    pods: &Pods,
    threshold: &Threshold,
    reading: Reading,
) -> Option<Cleanup> {
    let signal = threshold.signal;
    let text = format!("Attempting to reclaim {}", signal.resource());
    ctx.events.of_node(&ctx.settings.node_name, "Warning", "EvictionThresholdMet", text);
    if signal.is_disk() {
        if let Err(error) = housekeeping::remove_unused_images(ctx, pods).await {
            tracing::warn!(%error, "remove unused images");
        }
        let now = measure::readings(ctx).await;
        let watcher = &mut Watcher::new(vec![threshold.clone()], Duration::ZERO);
        if watcher.look(&now, ctx.now()).conditions.is_empty() {
            return None;
        }
    }
    let active = pods.active();
    let used = measure::usage(ctx, signal, &active).await;
    let Some(first) = evict::rank(signal, used).into_iter().next() else {
        tracing::warn!(signal = signal.as_str(), "no Pod may be evicted to free more");
        return None;
    };
    let ending = evict::ending(threshold, reading, &first);
    let grace = match threshold.grace {
        None => HARD_GRACE_PERIOD,
        Some(_) => ctx.settings.eviction.grace,
    };
    ctx.metrics.evicted(signal.as_str());
    evict_pod(ctx, pods, first.pod, ending, grace)
}

/// Evicts Pods that exceed their limits of local ephemeral storage. Returns their cleanups.
async fn limit_storage(ctx: &Context, pods: &Pods) -> Vec<Cleanup> {
    let limited: Vec<Arc<Pod>> =
        pods.active().into_iter().filter(|pod| evict::limits_storage(pod)).collect();
    if limited.is_empty() {
        return Vec::new();
    }
    let storage = measure::storage(ctx, &limited).await;
    let evictable = limited.iter().filter(|pod| !pod_core::admit::is_critical(pod));
    let evict = |pod: &Arc<Pod>| {
        let used = storage.get(pod.metadata.uid.as_deref()?)?;
        let ending = evict::over_storage_limit(pod, used)?;
        ctx.metrics.evicted("ephemeralcontainerfs.limit");
        evict_pod(ctx, pods, pod, ending, HARD_GRACE_PERIOD)
    };
    evictable.filter_map(evict).collect()
}

fn evict_pod(
    ctx: &Context,
    pods: &Pods,
    pod: &Pod,
    ending: Ending,
    grace: Duration,
) -> Option<Cleanup> {
    ctx.events.warn(pod, "Evicted", ending.message.clone().unwrap_or_default());
    pods.evict(pod.metadata.uid.as_deref().unwrap_or_default(), ending, grace)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Returns the time that passes until the next measurement if Pods are cleaned up after these times.
    async fn elapsed_until_measurement(cleanups: &[Duration]) -> Duration {
        let begin = Instant::now();
        let torn_down: Vec<_> = cleanups.iter().map(|_| watch::Sender::new(false)).collect();
        let work = async {
            for (sender, after) in torn_down.iter().zip(cleanups) {
                tokio::time::sleep_until(begin + *after).await;
                sender.send_replace(true);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = wait(torn_down.iter().map(watch::Sender::subscribe).collect()) => {}
            () = work => {}
        }
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn measures_at_once_after_cleanup_of_evicted_pods() {
        let seconds = Duration::from_secs;
        assert_eq!(elapsed_until_measurement(&[seconds(2)]).await, seconds(2));
        assert_eq!(elapsed_until_measurement(&[seconds(2), seconds(25)]).await, seconds(25));
        assert_eq!(elapsed_until_measurement(&[]).await, INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn measures_after_timeout_if_a_pod_is_not_cleaned_up() {
        let hours = Duration::from_secs(7200);
        let cleanups = [Duration::from_secs(20), hours, hours];
        assert_eq!(elapsed_until_measurement(&cleanups).await, CLEANUP_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn measures_at_once_if_worker_of_evicted_pod_is_gone() {
        let begin = Instant::now();
        let cleanup = watch::Sender::new(false).subscribe();
        wait(vec![cleanup]).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}
