//! Detects unhealthy nodes, and sets the taints that follow from node conditions.

mod eviction;
mod health;
mod zones;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use api_meta::ObjectMeta;
use client::{Error, Index, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    context::{Context, synced},
    indexes::by_node,
    node_ipam::object,
    shared::Watched,
    views::{Node, Pod, Taint, condition},
};
pub(crate) use eviction::{Eviction, evict, start as start_eviction};
use health::{LastContact, Readiness};
use zones::Zones;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    renew_time: Option<Box<str>>,
}

struct Lifecycle {
    context: Context,
    nodes: Watched<Node>,
    pods: Index<Pod>,
    leases: Watched<Lease>,
    queue: WorkQueue<String>,
    state: Mutex<State>,
}

struct State {
    contacts: HashMap<String, LastContact>,
    zones: Zones,
    /// The zones in metrics.
    measured_zones: HashSet<String>,
}

pub(crate) fn start(context: Context) {
    let nodes = context.watch::<Node>(Resource::NODES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let lifecycle = Arc::new(Lifecycle {
        pods: by_node(&pods),
        leases: context.watch::<Lease>(Resource::LEASES),
        nodes: nodes.clone(),
        queue: WorkQueue::default(),
        context: context.clone(),
        state: Mutex::new(State {
            contacts: HashMap::new(),
            zones: Zones::new(context.config.eviction),
            measured_zones: HashSet::new(),
        }),
    });
    nodes.on_key(&lifecycle.queue);
    let (ticking, queue) = (lifecycle.clone(), lifecycle.queue.clone());
    context.tasks.keep("node monitor", move || ticking.clone().monitor());
    let waits = vec![synced(&nodes), synced(&pods), synced(&lifecycle.leases)];
    context.run(&queue, 8, waits, lifecycle, |lifecycle, key| async move {
        lifecycle.reconcile(&key).await
    });
}

impl Lifecycle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    async fn monitor(self: Arc<Self>) {
        synced(&self.nodes).await;
        synced(&self.leases).await;
        loop {
            self.tick();
            tokio::time::sleep(self.context.config.node_monitor_period).await;
        }
    }

    /// Checks the heartbeats of all nodes and counts the unhealthy ones by zone.
    fn tick(&self) {
        let nodes = self.nodes.list();
        let mut state = self.state();
        state.contacts.retain(|name, _| self.nodes.get(name).is_some());
        let health = nodes
            .iter()
            .map(|node| (zones::zone_of(node), health::readiness(node) == Readiness::Ready));
        state.zones.update(health, Instant::now());
        let zones = nodes.iter().map(|node| zones::zone_of(node)).collect();
        self.context.metrics.evictions.follow(&mut state.measured_zones, zones);
        drop(state);
        for node in nodes {
            let silent = self.is_silent(&node);
            if silent || health::readiness(&node) != Readiness::Ready {
                self.queue.add(node.metadata.name.clone());
            }
        }
    }

    /// Reports whether no heartbeat arrived within the grace period, by this machine's clock.
    fn is_silent(&self, node: &Node) -> bool {
        let lease = self.leases.get(&format!("kube-node-lease/{}", node.metadata.name));
        let renewed = lease.and_then(|lease| lease.spec.renew_time.clone());
        let config = &self.context.config;
        let grace = match condition(&node.status.conditions, "Ready") {
            Some(_) => config.node_monitor_grace_period,
            None => config.node_startup_grace_period,
        };
        let mut state = self.state();
        let contacts = state.contacts.entry(node.metadata.name.clone()).or_default();
        contacts.is_silent(node, renewed.as_deref(), grace, Instant::now())
    }

    async fn reconcile(&self, name: &str) -> Result<(), Error> {
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        if self.is_silent(&node) {
            self.set_conditions_unknown(&node).await?;
        }
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        let readiness = health::readiness(&node);
        self.taint(&node, readiness).await?;
        if readiness != Readiness::Ready && condition(&node.status.conditions, "Ready").is_some() {
            self.set_pods_not_ready(&node).await?;
        }
        Ok(())
    }

    /// Sets the conditions of a silent node to Unknown.
    async fn set_conditions_unknown(&self, node: &Node) -> Result<(), Error> {
        let changed = health::unknown_conditions(node, self.context.now().to_seconds());
        if changed.is_empty() {
            return Ok(());
        }
        let meta = &node.metadata;
        tracing::warn!(node = %meta.name, "no heartbeat within the grace period; setting the conditions to Unknown");
        let was_ready = health::readiness(node) == Readiness::Ready;
        let at = PatchTarget { namespace: "", name: &meta.name, subresource: "status" };
        let patch = json!({"metadata": {"uid": meta.uid}, "status": {"conditions": changed}});
        self.context
            .client
            .patch::<Value>(&Resource::NODES, at, PatchKind::Strategic, &patch)
            .await?;
        if was_ready {
            let message = format!("Node {} status is now: NodeNotReady", meta.name);
            self.context.events.normal(object(meta), "NodeNotReady", message);
        }
        Ok(())
    }

    /// Updates the node's taints from its conditions. New NoExecute taints are rate limited: if many nodes fail at
    /// once, the network may be at fault.
    async fn taint(&self, node: &Node, readiness: Readiness) -> Result<(), Error> {
        // Admission taints a new node as not ready; keep that taint until the kubelet reports a Ready condition.
        if condition(&node.status.conditions, "Ready").is_none() {
            return Ok(());
        }
        let now = self.context.now().to_seconds();
        let mut desired = health::wanted_taints(node, now);
        let evicting = |taint: &Taint| taint.effect == "NoExecute";
        let has = |taint: &Taint| {
            node.spec.taints.iter().any(|t| t.key == taint.key && t.effect == taint.effect)
        };
        let mut evicted_zone = None;
        if readiness != Readiness::Ready && desired.iter().any(|t| evicting(t) && !has(t)) {
            let zone = zones::zone_of(node);
            let already = node.spec.taints.iter().any(|t| evicting(t) && health::is_ours(t));
            if !already {
                match self.state().zones.permit(&zone, Instant::now()) {
                    Ok(()) => evicted_zone = Some(zone),
                    Err(wait) => {
                        desired.retain(|taint| !evicting(taint));
                        self.queue.add_after(node.metadata.name.clone(), wait);
                    }
                }
            }
        }
        let taints = health::with_taints(&node.spec.taints, desired);
        if taints == node.spec.taints {
            return Ok(());
        }
        let version = &node.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        self.context.merge(&Resource::NODES, &node.metadata, patch).await?;
        evicted_zone.iter().for_each(|zone| self.context.metrics.evictions.count(zone));
        Ok(())
    }

    /// Sets the Pods of an unhealthy node to not ready, so that Services leave them out.
    async fn set_pods_not_ready(&self, node: &Node) -> Result<(), Error> {
        let now = self.context.now().to_seconds();
        for pod in self.pods.get(&node.metadata.name).into_iter().filter(|pod| pod.is_ready()) {
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": now}]}});
            let meta: &ObjectMeta = &pod.metadata;
            let at =
                PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "status" };
            let (client, kind) = (&self.context.client, PatchKind::Strategic);
            client.patch::<Value>(&Resource::PODS, at, kind, &patch).await.or_none()?;
            let about = eviction::object(meta);
            self.context.events.warning(about, "NodeNotReady", "Node is not ready");
        }
        Ok(())
    }
}
