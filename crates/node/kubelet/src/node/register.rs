//! Registers the Node and reports its status.

use api_meta::Tree as _;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api_rules::is_extended_resource;
use client::{Client, PatchKind, PatchTarget, Resource};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use kubelet_objects::NodeObject;
use kubelet_volumes::PROVISIONER;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{cloud, runtime_grace::RuntimeGrace, status};
use crate::context::Context;

/// The interval between two status computations while the node is not ready.
const NOT_READY: Duration = Duration::from_millis(250);

/// The time after which a missing Node is registered again. Whoever removes a machine deletes its Node first, and ends
/// the kubelet then.
const MISSING: Duration = Duration::from_secs(30);

/// Registers the node and reports its status until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, client: Client, pleg: watch::Receiver<Option<String>>) {
    let mut reported = NodeStatus::default();
    let mut grace = RuntimeGrace::default();
    let mut sent: Option<Instant> = None;
    let (mut pressures, mut volumes) = (ctx.pressures.follow(), ctx.volumes.drivers.changes());
    let (mut devices, mut shutdown) = (ctx.devices.changes(), ctx.shutting_down.subscribe());
    let mut pod_cidr = ctx.settings.pod_cidr.clone();
    let mut missing = MissingNode::default();
    let mut failures = rt::Backoff::new(NOT_READY, Duration::from_secs(7));
    loop {
        let health = pleg.borrow().clone();
        let now = status::status(&ctx, &reported, health.as_ref(), &mut grace).await;
        let node = ctx.node.get();
        let due = sent.is_none_or(|at| at.elapsed() >= ctx.settings.status_report)
            || missing.is_due(node.is_some(), Instant::now());
        let contradicted = node.is_some_and(|node| has_other_status(node.conditions(), &now));
        let obsolete = ctx.node.get().map(|node| obsolete(&node, &now)).unwrap_or_default();
        let changed = differs(&reported, &now) || !obsolete.is_empty();
        if due || contradicted || changed || pod_cidr.is_empty() {
            match send(&ctx, &client, &now, &obsolete, sent.is_none()).await {
                Ok(node) => {
                    record_events(&ctx, &reported, &now, sent.is_none());
                    failures.reset();
                    missing = MissingNode::default();
                    sent = Some(Instant::now());
                    use_pod_cidr(&ctx, &node, &mut pod_cidr).await;
                }
                Err(error) => {
                    tracing::warn!(node = %ctx.settings.node_name, %error, "report the node's status");
                    tokio::time::sleep(failures.next(rt::random())).await;
                    continue;
                }
            }
        }
        let ready =
            now.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        reported = now;
        let wait = if ready || *ctx.shutting_down.borrow() {
            ctx.settings.status_update
        } else {
            NOT_READY
        };
        tokio::select! {
            // Report pressure immediately, so that the scheduler sends no more Pods here.
            _ = pressures.changed() => {}
            // Pods wait until the API server lists their volumes as in use.
            _ = volumes.changed() => {}
            // The scheduler must send no more Pods here.
            _ = shutdown.changed() => {}
            // Report changed devices immediately, above all removed ones.
            _ = devices.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// A Node that the API server does not have, for example because its store was restored from a backup.
#[derive(Default)]
struct MissingNode {
    since: Option<Instant>,
}

impl MissingNode {
    /// Reports whether the Node has been missing for so long that it is registered again.
    fn is_due(&mut self, exists: bool, now: Instant) -> bool {
        if exists {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) >= MISSING
    }
}

/// Records Events about changed conditions, and one about the start of the kubelet.
fn record_events(ctx: &Context, before: &NodeStatus, now: &NodeStatus, first: bool) {
    let name = &ctx.settings.node_name;
    if first {
        ctx.events.of_node(name, "Normal", "Starting", "Starting kubelet.".to_owned());
    }
    let of = |status: &NodeStatus, kind: &str| {
        let conditions = status.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_ == kind).map(|c| c.status == "True")
    };
    for (kind, yes, no) in [
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
        ("Ready", "NodeReady", "NodeNotReady"),
    ] {
        let Some(holds) = of(now, kind).filter(|holds| of(before, kind) != Some(*holds)) else {
            continue;
        };
        // A node that is not ready yet needs no Event.
        if kind == "Ready" && !holds && of(before, kind).is_none() {
            continue;
        }
        let reason = if holds { yes } else { no };
        let text = format!("Node {name} status is now: {reason}");
        ctx.events.of_node(name, "Normal", reason, text);
    }
    if first {
        let text = "Updated Node Allocatable limit across pods".to_owned();
        ctx.events.of_node(name, "Normal", "NodeAllocatableEnforced", text);
    }
}

/// Reports whether two statuses differ in more than their heartbeat times.
fn differs(before: &NodeStatus, now: &NodeStatus) -> bool {
    let without_heartbeats = |status: &NodeStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().flatten().for_each(|c| c.last_heartbeat_time = None);
        status
    };
    without_heartbeats(before) != without_heartbeats(now)
}

/// Reports whether the API server has another status of a condition. For example, the node controller sets the
/// conditions of an unreachable node to Unknown.
fn has_other_status(conditions: &[NodeCondition], own: &NodeStatus) -> bool {
    let differs = |own: &NodeCondition| {
        conditions.iter().any(|old| old.type_ == own.type_ && old.status != own.status)
    };
    own.conditions.iter().flatten().any(differs)
}

/// Returns the extended resources that are allocatable in the Node's status, but have no capacity any more.
fn obsolete(node: &NodeObject, own: &NodeStatus) -> Vec<String> {
    let kept = own.allocatable.as_ref();
    let names = node.allocatable().keys().filter(|name| is_extended_resource(name));
    names.filter(|name| kept.is_none_or(|kept| !kept.contains_key(*name))).cloned().collect()
}

async fn send(
    ctx: &Context,
    client: &Client,
    status: &NodeStatus,
    obsolete: &[String],
    register: bool,
) -> Result<Node, client::Error> {
    let name = &ctx.settings.node_name;
    if register && ctx.settings.register {
        self::register(ctx, client, status).await?;
    }
    let mut patch = json!({ "status": status });
    for name in obsolete {
        patch.put(&["status", "allocatable", name], Value::Null);
    }
    let at = PatchTarget { namespace: "", name, subresource: "status" };
    match client.patch(&Resource::NODES, at, PatchKind::Strategic, &patch).await {
        // The Node was deleted. Register it again; upstream's kubelet does so only at its next start.
        Err(error) if error.is_not_found() && ctx.settings.register => {
            self::register(ctx, client, status).await?;
            client.patch(&Resource::NODES, at, PatchKind::Strategic, &patch).await
        }
        other => other,
    }
}

/// Creates the Node, or updates the labels of an existing one.
async fn register(
    ctx: &Context,
    client: &Client,
    status: &NodeStatus,
) -> Result<(), client::Error> {
    let name = &ctx.settings.node_name;
    let labels = labels(ctx);
    let provided_ip = cloud::provided_ip(&ctx.settings.cloud);
    let mut annotations = json!({
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        (PROVISIONER): ctx.volumes.local_directory().display().to_string(),
    });
    for (key, value) in provided_ip.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        annotations.put(&[*key], json!(value));
    }
    let mut node = json!({
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": {},
        "status": status,
    });
    if !ctx.settings.provider_id.is_empty() {
        node.put(&["spec", "providerID"], json!(ctx.settings.provider_id));
    }
    let taints = cloud::taints(&ctx.settings);
    if !taints.is_empty() {
        node.put(&["spec", "taints"], json!(taints));
    }
    match client.create::<_, Value>(&Resource::NODES, "", &node).await {
        Ok(_) => {
            tracing::info!(node = %name, "the node is registered");
            Ok(())
        }
        Err(error) if error.is_already_exists() => {
            let existing: Node = client.get(&Resource::NODES, "", name).await?;
            let have = existing.metadata.labels.unwrap_or_default();
            let noted = existing.metadata.annotations.unwrap_or_default();
            if labels.iter().all(|(key, value)| have.get(key) == Some(value))
                && provided_ip.iter().all(|(key, value)| noted.get(*key) == value.as_ref())
            {
                return Ok(());
            }
            let patch = json!({ "metadata": { "labels": labels, "annotations": provided_ip } });
            let at = PatchTarget { namespace: "", name, subresource: "" };
            client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

fn labels(ctx: &Context) -> BTreeMap<String, String> {
    let mut labels = ctx.settings.labels.clone();
    let arch = status::architecture();
    for (key, value) in [
        ("beta.kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/hostname", &ctx.settings.node_name),
        ("kubernetes.io/os", "linux"),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

/// Passes the Pod address range of the Node to the runtime.
async fn use_pod_cidr(ctx: &Context, node: &Node, current: &mut String) {
    let ranges = node.spec.as_ref().and_then(|s| s.pod_cidrs.clone()).unwrap_or_default().join(",");
    if ranges.is_empty() || ranges == *current {
        return;
    }
    match ctx.cri.set_pod_cidr(&ranges).await {
        Ok(()) => *current = ranges,
        Err(error) => tracing::warn!(%error, "pass the Node's Pod address range to the runtime"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str) -> NodeCondition {
        NodeCondition { type_: kind.to_owned(), status: status.to_owned(), ..Default::default() }
    }

    #[test]
    fn registers_missing_node_after_thirty_seconds() {
        let (mut missing, start) = (MissingNode::default(), Instant::now());
        let mut is_due =
            |exists, seconds| missing.is_due(exists, start + Duration::from_secs(seconds));
        assert!(!is_due(true, 0) && !is_due(false, 100) && !is_due(false, 129));
        assert!(is_due(false, 130));
        // The thirty seconds start again after the Node was there.
        assert!(!is_due(true, 131) && !is_due(false, 132) && !is_due(false, 161));
    }

    #[test]
    fn detects_conditions_that_the_api_server_has_changed() {
        let conditions = vec![condition("Ready", "True"), condition("PIDPressure", "False")];
        let own = NodeStatus { conditions: Some(conditions.clone()), ..NodeStatus::default() };
        assert!(!has_other_status(&[], &own), "nothing is reported yet");
        assert!(!has_other_status(&conditions, &own));
        // Conditions of other components are ignored.
        let foreign = [&conditions[..], &[condition("NetworkUnavailable", "False")]].concat();
        assert!(!has_other_status(&foreign, &own));
        assert!(has_other_status(&[condition("Ready", "Unknown")], &own));
    }
}
