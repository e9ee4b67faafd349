//! Drains a Node: no new Pods are scheduled to it, and its Pods are evicted as their disruption budgets allow.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Tree as _;
use client::{Client, DeleteOptions, ListOptions, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::error::Error;

const POLL: Duration = Duration::from_millis(500);
/// External load balancers send no traffic to a Node with this label.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The taint that keeps new Pods off a Node that will be replaced soon, if there is another Node.
const SCHEDULED: &str = "kops.k8s.io/scheduled-for-update";
/// The annotation of a Node whose machine is replaced regardless of its configuration.
const NEEDS_UPDATE: &str = "kops.k8s.io/needs-update";
const MIRROR: &str = "kubernetes.io/config.mirror";

async fn patch(
    client: &Client,
    node: &str,
    kind: PatchKind<'_>,
    patch: &Value,
) -> Result<(), Error> {
    let at = PatchTarget { namespace: "", name: node, subresource: "" };
    client.patch::<Value>(&Resource::NODES, at, kind, patch).await?;
    Ok(())
}

/// Reports whether a Node is marked: its machine needs an update, or an earlier rolling update has not come to it, for
/// example one with --force that failed. Such an update leaves the taint, and perhaps a cordon.
pub(crate) fn needs_update(node: &Value) -> bool {
    let annotated = node.has(&["metadata", "annotations", NEEDS_UPDATE]);
    annotated || node.items("spec.taints").iter().any(|taint| taint.text("key") == SCHEDULED)
}

/// Taints a Node, so that new Pods prefer other Nodes.
pub(crate) async fn taint_for_update(client: &Client, node: &Value) -> Result<(), Error> {
    let mut taints = node.items("spec.taints").to_vec();
    if taints.iter().any(|taint| taint.text("key") == SCHEDULED) {
        return Ok(());
    }
    taints.push(json!({"key": SCHEDULED, "effect": "PreferNoSchedule"}));
    // The resourceVersion detects a concurrent change of the taints.
    let version = node.text("metadata.resourceVersion");
    let change = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    patch(client, node.text("metadata.name"), PatchKind::Merge, &change).await
}

/// Cordons a Node.
pub(crate) async fn cordon(client: &Client, node: &str) -> Result<(), Error> {
    let change = json!({"metadata": {"labels": {EXCLUDED: ""}}, "spec": {"unschedulable": true}});
    patch(client, node, PatchKind::Merge, &change).await
}

/// Reports whether a Pod must be evicted. Static Pods and those of DaemonSets belong to the Node.
fn must_evict(pod: &Value) -> bool {
    let is_mirror = pod.has(&["metadata", "annotations", MIRROR]);
    let mut owners = pod.items("metadata.ownerReferences").iter();
    !is_mirror && !owners.any(|owner| owner.flag("controller") && owner.text("kind") == "DaemonSet")
}

/// Evicts a Node's Pods, and waits until they are gone. `report` reports the Pods that remain, with the reasons.
pub(crate) async fn drain(
    client: &Client,
    node: &str,
    limit: Duration,
    report: &dyn Fn(String) -> Result<(), Error>,
) -> Result<(), Error> {
    let until = Instant::now() + limit;
    let mut reported = BTreeMap::new();
    loop {
        let mut unreachable = None;
        let fields = ListOptions::fields(&format!("spec.nodeName={node}"));
        match client.list::<Value>(&Resource::PODS, "", &fields).await {
            Ok(pods) => {
                let left: Vec<_> = pods.items.into_iter().filter(must_evict).collect();
                if left.is_empty() {
                    return Ok(());
                }
                let mut blocked = BTreeMap::new();
                for pod in &left {
                    if let Some(reason) = evict(client, pod).await {
                        blocked.insert(pod_name(pod), reason);
                    }
                }
                for (pod, reason) in &blocked {
                    if reported.get(pod) != Some(reason) {
                        report(format!("Pod {pod} stays on node {node:?}: {reason}"))?;
                    }
                }
                reported = blocked;
                // Terminating Pods have their own grace period.
                left.iter().filter(|pod| pod.has("metadata.deletionTimestamp")).for_each(|pod| {
                    reported.entry(pod_name(pod)).or_insert_with(|| "it is terminating".to_owned());
                });
            }
            Err(error) => unreachable = Some(error.to_string()),
        }
        if Instant::now() >= until {
            let blocked = reported.iter().map(|(pod, reason)| format!("Pod {pod}: {reason}"));
            let reasons: Vec<_> = blocked.chain(unreachable).collect();
            return Err(Error::Drain {
                node: node.to_owned(),
                seconds: limit.as_secs(),
                reasons: reasons.join("; "),
            });
        }
        sleep(POLL).await;
    }
}

fn pod_name(pod: &Value) -> String {
    format!("{}/{}", pod.text("metadata.namespace"), pod.text("metadata.name"))
}

/// Evicts a Pod; returns the reason if the eviction is rejected.
async fn evict(client: &Client, pod: &Value) -> Option<String> {
    if pod.has("metadata.deletionTimestamp") {
        return None;
    }
    let (namespace, name) = (pod.text("metadata.namespace"), pod.text("metadata.name"));
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod.text("metadata.uid")}},
    });
    let pods = &Resource::PODS;
    let result =
        client.create_subresource::<_, Value>(pods, namespace, name, "eviction", &eviction);
    match result.await {
        Ok(_) => None,
        // The Pod is gone, or another one has its name.
        Err(error) if error.is_not_found() || error.is_conflict() => None,
        Err(error) => Some(rejection_reason(&error)),
    }
}

/// Returns the reason for a rejected eviction: the disruption budget, or the server's message.
fn rejection_reason(error: &client::Error) -> String {
    let Some(status) = error.status() else {
        return error.to_string();
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<_> = causes.map(|cause| cause.message.as_str()).collect();
    if causes.is_empty() { status.message.clone() } else { causes.join("; ") }
}

/// Deletes the Node of a machine that will end; a later machine of the same name registers a new one.
pub(crate) async fn delete_node(client: &Client, node: &str) -> Result<(), Error> {
    match client.delete(&Resource::NODES, "", node, &DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use client::Status;

    use super::*;

    #[test]
    fn keeps_static_and_daemon_set_pods() {
        let pod = |extra: Value| {
            let mut pod = json!({"metadata": {"name": "a", "namespace": "b"}});
            pod.put("metadata", extra);
            pod
        };
        let owner = |kind: &str| json!({"ownerReferences": [{"kind": kind, "controller": true}]});
        assert!(must_evict(&pod(json!({}))) && must_evict(&pod(owner("ReplicaSet"))));
        assert!(!must_evict(&pod(owner("DaemonSet"))));
        assert!(!must_evict(&pod(json!({"annotations": {MIRROR: "hash"}}))));
    }

    #[test]
    fn finds_nodes_that_an_update_has_not_finished() {
        let node = |annotations: Value, taint: &str| json!({"metadata": {"annotations": annotations}, "spec": {"taints": [{"key": taint}]}});
        assert!(needs_update(&node(json!({NEEDS_UPDATE: ""}), "a")));
        assert!(needs_update(&node(Value::Null, SCHEDULED)));
        assert!(!needs_update(&node(json!({"a": ""}), "a")) && !needs_update(&json!({})));
    }

    #[test]
    fn names_the_blocking_budget() {
        let status = |details: Value| {
            let text = json!({"code": 429, "reason": "TooManyRequests", "message": "Cannot evict pod", "details": details});
            let status: Status = serde_json::from_value(text).unwrap();
            rejection_reason(&client::Error::Api {
                method: http::Method::POST,
                path: "/x".to_owned(),
                status: Box::new(status),
            })
        };
        let cause = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let causes = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
        assert_eq!(status(causes), cause);
        assert_eq!(status(json!({})), "Cannot evict pod");
    }
}
