//! Evicts Pods from devices with NoExecute taints that their claims do not (or no longer) tolerate. The taints are
//! those of ResourceSlices and of DeviceTaintRules, whose status shows the progress.

mod status;
mod taint;

use std::{collections::HashSet, sync::Arc};

use client::{Error, Index, Resource, WorkQueue};
use sched_core::{DeviceTaintView, ResourceSliceView};

use self::{
    status::{RuleStatus, TaintRule},
    taint::{active_pods, end, pool},
};
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
    /// The rules that taint devices, and their status; `None` if their feature is off.
    rules: Option<RuleStatus>,
    pods: Watched<Pod>,
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
    let rules = context.config.features.is_enabled("DRADeviceTaintRules").then(|| {
        let rules = context.watch::<TaintRule>(Resource::DEVICE_TAINT_RULES);
        let (add, all) = (queue.clone(), claims.clone());
        rules.on(move |change| {
            if status::is_new(change) || change.new.is_none() {
                all.list().iter().for_each(|claim| add.add(claim.metadata.key()));
            }
        });
        RuleStatus::start(&context, rules, slices.clone(), claims.clone(), pods.clone())
    });
    let devices = Arc::new(Devices {
        claims: claims.clone(),
        slices: slices.index("pool", |slice| vec![pool(&slice.spec.driver, &slice.spec.pool.name)]),
        rules,
        pods: pods.clone(),
    });
    claims.on_key(&queue);
    let mut waits = vec![synced(&claims), synced(&slices), synced(&pods)];
    waits.extend(devices.rules.iter().map(|status| synced(&status.rules)));
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
        let rules = self.rules.as_ref().map(|status| status.rules.list()).unwrap_or_default();
        let mut reasons: Vec<&TaintRule> = Vec::new();
        let mut ends = Vec::new();
        for device in &allocation.devices.results {
            let slices = self.slices.get(&pool(&device.driver, &device.pool));
            ends.extend(end(device, &taints(&slices, &device.device), now));
            for rule in rules.iter().filter(|rule| rule.concerns(device)) {
                if let Some(at) = end(device, std::slice::from_ref(&rule.spec.taint), now) {
                    ends.push(at);
                    reasons.push(rule);
                }
            }
        }
        let Some(end) = ends.into_iter().min() else { return Ok(()) };
        reasons.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
        reasons.dedup_by(|a, b| a.metadata.uid == b.metadata.uid);
        self.rules.iter().for_each(|status| status.update_later(&reasons));
        if end > now {
            queue.add_after(key.to_owned(), end.since(now));
            return Ok(());
        }
        for pod in active_pods(&claim, &self.pods) {
            evict(context, &pod.metadata, &TEXTS).await?;
            self.rules.iter().for_each(|status| status.count_eviction(&reasons, &pod.metadata));
        }
        Ok(())
    }
}
