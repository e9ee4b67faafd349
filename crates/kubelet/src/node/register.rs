use api_meta::Tree as _;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{Client, PatchKind, Patched, Resource};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{patience::Patience, status};
use crate::{context::Context, local_volumes};

/// A node that is not ready looks again soon, so that it is ready as soon as it can be.
const NOT_READY: Duration = Duration::from_millis(250);

/// Registers the node and keeps its status, until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, client: Client, pleg: watch::Receiver<Option<String>>) {
    let mut known = NodeStatus::default();
    let mut patience = Patience::default();
    let mut sent: Option<Instant> = None;
    let (mut pressures, mut volumes) = (ctx.pressures.follow(), ctx.csi.changes());
    let mut devices = ctx.devices.changes();
    let mut pod_cidr = ctx.settings.pod_cidr.clone();
    let mut failures = rt::Backoff::new(NOT_READY, Duration::from_secs(7));
    loop {
        let health = pleg.borrow().clone();
        let now = status::status(&ctx, &known, health.as_ref(), &mut patience).await;
        let due = sent.is_none_or(|at| at.elapsed() >= ctx.settings.status_report);
        let contradicted = ctx.node.get().is_some_and(|told| contradicts(told.conditions(), &now));
        if due || contradicted || differs(&known, &now) || pod_cidr.is_empty() {
            match send(&ctx, &client, &now, sent.is_none()).await {
                Ok(node) => {
                    tell(&ctx, &known, &now, sent.is_none());
                    failures.reset();
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
        known = now;
        let wait = if ready { ctx.settings.status_update } else { NOT_READY };
        tokio::select! {
            // A shortage is told at once, so that no more Pods are sent here.
            _ = pressures.changed() => {}
            // Pods wait until the API has heard which volumes they are about to use.
            _ = volumes.changed() => {}
            // The scheduler is to hear of devices at once, and above all of those that are no more.
            _ = devices.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Tells by Events which conditions have changed, and first of all that this kubelet has begun.
fn tell(ctx: &Context, before: &NodeStatus, now: &NodeStatus, first: bool) {
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
        // That a node is not ready yet is no news.
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

/// Whether two statuses differ in more than when they were made.
fn differs(before: &NodeStatus, now: &NodeStatus) -> bool {
    let without_heartbeats = |status: &NodeStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().flatten().for_each(|c| c.last_heartbeat_time = None);
        status
    };
    without_heartbeats(before) != without_heartbeats(now)
}

/// Whether the API tells of a condition what this node does not: a node that was out of reach is said to be unknown
/// until it speaks up.
fn contradicts(told: &[NodeCondition], own: &NodeStatus) -> bool {
    let differs = |own: &NodeCondition| {
        told.iter().any(|told| told.type_ == own.type_ && told.status != own.status)
    };
    own.conditions.iter().flatten().any(differs)
}

async fn send(
    ctx: &Context,
    client: &Client,
    status: &NodeStatus,
    register: bool,
) -> Result<Node, client::Error> {
    let name = &ctx.settings.node_name;
    if register && ctx.settings.register {
        self::register(ctx, client, status).await?;
    }
    let patch = json!({ "status": status });
    let at = Patched { namespace: "", name, subresource: "status" };
    match client.patch(&Resource::NODES, at, PatchKind::Strategic, &patch).await {
        // Someone deleted the node: it comes back, as with upstream's kubelet when that is started again.
        Err(error) if error.is_not_found() && ctx.settings.register => {
            self::register(ctx, client, status).await?;
            client.patch(&Resource::NODES, at, PatchKind::Strategic, &patch).await
        }
        other => other,
    }
}

/// Makes the node's object, or brings the labels of an existing one up to date.
async fn register(
    ctx: &Context,
    client: &Client,
    status: &NodeStatus,
) -> Result<(), client::Error> {
    let name = &ctx.settings.node_name;
    let labels = labels(ctx);
    let annotations = json!({
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        (local_volumes::PROVISIONER): local_volumes::directory(ctx).display().to_string(),
    });
    let mut node = json!({
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": {},
        "status": status,
    });
    if !ctx.settings.provider_id.is_empty() {
        node.put(&["spec", "providerID"], json!(ctx.settings.provider_id));
    }
    if !ctx.settings.taints.is_empty() {
        node.put(&["spec", "taints"], json!(ctx.settings.taints));
    }
    match client.create::<_, Value>(&Resource::NODES, "", &node).await {
        Ok(_) => {
            tracing::info!(node = %name, "the node is registered");
            Ok(())
        }
        Err(error) if error.is_already_exists() => {
            let existing: Node = client.get(&Resource::NODES, "", name).await?;
            let have = existing.metadata.labels.unwrap_or_default();
            if labels.iter().all(|(key, value)| have.get(key) == Some(value)) {
                return Ok(());
            }
            let patch = json!({ "metadata": { "labels": labels } });
            let at = Patched { namespace: "", name, subresource: "" };
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

/// Hands the range that the node was given on to the runtime.
async fn use_pod_cidr(ctx: &Context, node: &Node, known: &mut String) {
    let ranges = node.spec.as_ref().and_then(|s| s.pod_cidrs.clone()).unwrap_or_default().join(",");
    if ranges.is_empty() || ranges == *known {
        return;
    }
    match ctx.cri.set_pod_cidr(&ranges).await {
        Ok(()) => *known = ranges,
        Err(error) => tracing::warn!(%error, "tell the runtime this node's Pod range"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str) -> NodeCondition {
        NodeCondition { type_: kind.to_owned(), status: status.to_owned(), ..Default::default() }
    }

    #[test]
    fn what_the_api_has_come_to_believe_of_a_silent_node_is_corrected() {
        let conditions = vec![condition("Ready", "True"), condition("PIDPressure", "False")];
        let own = NodeStatus { conditions: Some(conditions.clone()), ..NodeStatus::default() };
        assert!(!contradicts(&[], &own), "nothing is told yet");
        assert!(!contradicts(&conditions, &own));
        // Another's condition is not this node's to tell of.
        let foreign = [&conditions[..], &[condition("NetworkUnavailable", "False")]].concat();
        assert!(!contradicts(&foreign, &own));
        assert!(contradicts(&[condition("Ready", "Unknown")], &own));
    }
}
