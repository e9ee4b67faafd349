//! Evicts Pods from devices with NoExecute taints that their claims do not (or no longer) tolerate. The taints are
//! those of ResourceSlices and of DeviceTaintRules.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api_meta::Timestamp;
use client::{Error, Index, Resource, WorkQueue};
use sched_core::{AllocatedDevice, DeviceTaintRuleView, DeviceTaintView, ResourceSliceView};

use crate::{
    context::{Context, synced},
    node_lifecycle::{Eviction, evict},
    shared::Watched,
    views::{Pod, ResourceClaim},
};

const TEXTS: Eviction = Eviction {
    event: "DeviceTaintManagerEviction",
    reason: "DeletionByDeviceTaintManager",
    message: "Device Taint manager: deleting due to NoExecute taint",
};

struct Devices {
    claims: Watched<ResourceClaim>,
    /// Slices by driver and pool.
    slices: Index<ResourceSliceView>,
    /// The rules that taint devices; `None` if their feature is off.
    rules: Option<Watched<DeviceTaintRuleView>>,
    pods: Watched<Pod>,
}

fn pool(driver: &str, name: &str) -> String {
    format!("{driver}/{name}")
}

/// Returns the time at which Pods that use the device are evicted; `None` if they may stay.
fn end(device: &AllocatedDevice, taints: &[DeviceTaintView], now: Timestamp) -> Option<Timestamp> {
    let executing = taints.iter().filter(|taint| &*taint.effect == "NoExecute");
    let ends = executing.filter_map(|taint| {
        let since = taint.time_added.as_deref().and_then(|at| at.parse().ok()).unwrap_or(now);
        let tolerating: Vec<_> =
            device.tolerations.iter().filter(|toleration| toleration.tolerates(taint)).collect();
        // A toleration without seconds has no end.
        let seconds: Option<Vec<i64>> = tolerating.iter().map(|t| t.toleration_seconds).collect();
        match seconds {
            None => None,
            Some(seconds) => {
                let seconds = seconds.into_iter().min().unwrap_or(0);
                Some(since.plus(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
            }
        }
    });
    ends.min()
}

/// Returns the device's taints in the pool's slices of the latest generation.
fn taints(slices: &[Arc<ResourceSliceView>], device: &str) -> Vec<DeviceTaintView> {
    let latest = slices.iter().map(|slice| slice.spec.pool.generation).max();
    let counting = slices.iter().filter(|slice| Some(slice.spec.pool.generation) == latest);
    let devices = counting.flat_map(|slice| &slice.spec.devices);
    devices.filter(|candidate| *candidate.name == *device).flat_map(|d| d.taints.clone()).collect()
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let claims = context.watch::<ResourceClaim>(Resource::RESOURCE_CLAIMS);
    let slices = context.watch::<ResourceSliceView>(Resource::RESOURCE_SLICES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let by_pool = claims.index("pool", |claim| {
        let allocation = claim.status.allocation.iter();
        let results = allocation.flat_map(|allocation| &allocation.devices.results);
        let pools: HashSet<_> = results.map(|d| pool(&d.driver, &d.pool)).collect();
        pools.into_iter().collect()
    });
    let devices = Arc::new(Devices {
        claims: claims.clone(),
        slices: slices.index("pool", |slice| vec![pool(&slice.spec.driver, &slice.spec.pool.name)]),
        rules: context
            .config
            .features
            .is_enabled("DRADeviceTaintRules")
            .then(|| context.watch::<DeviceTaintRuleView>(Resource::DEVICE_TAINT_RULES)),
        pods: pods.clone(),
    });
    claims.on_key(&queue);
    let mut waits = vec![synced(&claims), synced(&slices), synced(&pods)];
    if let Some(rules) = &devices.rules {
        let (add, all) = (queue.clone(), claims.clone());
        rules.on(move |_| {
            all.list().iter().for_each(|claim| add.add(claim.metadata.key()));
        });
        waits.push(synced(rules));
    }
    let add = queue.clone();
    slices.on(move |change| {
        for slice in change.old.into_iter().chain(change.new) {
            let of = pool(&slice.spec.driver, &slice.spec.pool.name);
            by_pool.get(&of).iter().for_each(|claim| add.add(claim.metadata.key()));
        }
    });
    let state = (context.clone(), devices, queue.clone());
    context.run(&queue, 8, waits, state, |(context, devices, queue), key| async move {
        devices.reconcile(&context, &queue, &key).await
    });
}

impl Devices {
    async fn reconcile(
        &self,
        context: &Context,
        queue: &WorkQueue<String>,
        key: &str,
    ) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let Some(allocation) = &claim.status.allocation else { return Ok(()) };
        let now = context.now();
        let rules = self.rules.as_ref().map(|rules| rules.list()).unwrap_or_default();
        let ends = allocation.devices.results.iter().filter_map(|device| {
            let slices = self.slices.get(&pool(&device.driver, &device.pool));
            let mut taints = taints(&slices, &device.device);
            let concerning = rules
                .iter()
                .filter(|rule| rule.concerns(&device.driver, &device.pool, &device.device));
            taints.extend(concerning.map(|rule| rule.spec.taint.clone()));
            end(device, &taints, now)
        });
        let Some(end) = ends.min() else { return Ok(()) };
        if end > now {
            queue.add_after(key.to_owned(), end.since(now));
            return Ok(());
        }
        for user in claim.status.reserved_for.iter().filter(|user| user.is_pod()) {
            let pod = self.pods.get(&format!("{}/{}", claim.metadata.namespace, user.name));
            let Some(pod) = pod.filter(|pod| pod.metadata.uid == user.uid && pod.is_active())
            else {
                continue;
            };
            evict(context, &pod.metadata, &TEXTS).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn evicts_when_claim_toleration_ends() {
        let now = Timestamp::from_unix(1000, 0);
        let tainted = |effect: &str| -> Vec<DeviceTaintView> {
            serde_json::from_value(json!([{"key": "sick", "value": "very", "effect": effect,
                "timeAdded": Timestamp::from_unix(900, 0)}]))
            .unwrap()
        };
        for (tolerations, effect, wanted) in [
            (json!([]), "NoExecute", Some(900)),
            (json!([]), "NoSchedule", None),
            (json!([{"operator": "Exists"}]), "NoExecute", None),
            (json!([{"operator": "Exists", "tolerationSeconds": 300}]), "NoExecute", Some(1200)),
            (json!([{"key": "other", "operator": "Exists"}]), "NoExecute", Some(900)),
            (
                json!([{"key": "sick", "value": "very", "tolerationSeconds": 50},
                {"operator": "Exists", "tolerationSeconds": 10}]),
                "NoExecute",
                Some(910),
            ),
            (
                json!([{"operator": "Exists", "tolerationSeconds": 10}, {"operator": "Exists"}]),
                "NoExecute",
                None,
            ),
        ] {
            let device: AllocatedDevice =
                serde_json::from_value(json!({"tolerations": tolerations})).unwrap();
            let end = end(&device, &tainted(effect), now).map(|at| at.unix());
            assert_eq!(end, wanted, "{tolerations} {effect}");
        }
    }
}
