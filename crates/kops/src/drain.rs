//! Emptying a Node: nothing new comes to it, and what is there goes as its budgets allow.

use std::{collections::BTreeMap, time::Duration};

use client::{Client, DeleteOptions, ListOptions, PatchKind, Patched, Resource};
use kops_api::Spec as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::Error;

const LOOK: Duration = Duration::from_millis(500);
/// Load balancers outside send nothing to a Node that has it.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nothing is to come to a Node that will go soon, if there is another place.
const SCHEDULED: &str = "kops.k8s.io/scheduled-for-update";
const MIRROR: &str = "kubernetes.io/config.mirror";

async fn patch(
    client: &Client,
    node: &str,
    kind: PatchKind<'_>,
    patch: &Value,
) -> Result<(), Error> {
    let at = Patched { namespace: "", name: node, subresource: "" };
    client.patch::<Value>(&Resource::NODES, at, kind, patch).await?;
    Ok(())
}

/// Has new Pods rather go elsewhere.
pub(crate) async fn discourage(client: &Client, node: &Value) -> Result<(), Error> {
    let mut taints = node.list("spec.taints").to_vec();
    if taints.iter().any(|taint| taint.text("key") == SCHEDULED) {
        return Ok(());
    }
    taints.push(json!({"key": SCHEDULED, "effect": "PreferNoSchedule"}));
    // Of two that write taints one is told so.
    let version = node.text("metadata.resourceVersion");
    let change = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    patch(client, node.text("metadata.name"), PatchKind::Merge, &change).await
}

/// Has nothing new come.
pub(crate) async fn cordon(client: &Client, node: &str) -> Result<(), Error> {
    let change = json!({"metadata": {"labels": {EXCLUDED: ""}}, "spec": {"unschedulable": true}});
    patch(client, node, PatchKind::Merge, &change).await
}

/// Whether a Pod is to go before its Node does: static ones and those of DaemonSets belong to the Node.
fn goes(pod: &Value) -> bool {
    let annotations = pod.at("metadata.annotations");
    let is_mirror = annotations.is_some_and(|all| all.get(MIRROR).is_some());
    let mut owners = pod.list("metadata.ownerReferences").iter();
    !is_mirror && !owners.any(|owner| owner.is("controller") && owner.text("kind") == "DaemonSet")
}

/// Evicts what is on a Node, and waits until it is gone. `tell` is told who holds it up, and what holds them.
pub(crate) async fn drain(
    client: &Client,
    node: &str,
    patience: Duration,
    tell: &dyn Fn(String) -> Result<(), Error>,
) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let mut told = BTreeMap::new();
    loop {
        let mut unreachable = None;
        let fields = ListOptions::fields(&format!("spec.nodeName={node}"));
        match client.list::<Value>(&Resource::PODS, "", &fields).await {
            Ok(pods) => {
                let left: Vec<_> = pods.items.into_iter().filter(goes).collect();
                if left.is_empty() {
                    return Ok(());
                }
                let mut held = BTreeMap::new();
                for pod in &left {
                    if let Some(reason) = evict(client, pod).await {
                        held.insert(name(pod), reason);
                    }
                }
                for (pod, reason) in &held {
                    if told.get(pod) != Some(reason) {
                        tell(format!("Pod {pod} stays on node {node:?}: {reason}"))?;
                    }
                }
                told = held;
                // Those that are about to end have their own time for it.
                left.iter().filter(|pod| pod.has("metadata.deletionTimestamp")).for_each(|pod| {
                    told.entry(name(pod)).or_insert_with(|| "it is about to end".to_owned());
                });
            }
            Err(error) => unreachable = Some(error.to_string()),
        }
        if Instant::now() >= until {
            let held = told.iter().map(|(pod, reason)| format!("Pod {pod}: {reason}"));
            let why: Vec<_> = held.chain(unreachable).collect();
            return Err(Error::Usage(format!(
                "draining node {node:?} took longer than {} s: {}",
                patience.as_secs(),
                why.join("; ")
            )));
        }
        sleep(LOOK).await;
    }
}

fn name(pod: &Value) -> String {
    format!("{}/{}", pod.text("metadata.namespace"), pod.text("metadata.name"))
}

/// Asks for a Pod's end; comes back with what stands against it.
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
    let asked = client.create_subresource::<_, Value>(pods, namespace, name, "eviction", &eviction);
    match asked.await {
        Ok(_) => None,
        // It went by itself, or another has its name.
        Err(error) if error.is_not_found() || error.is_conflict() => None,
        Err(error) => Some(refusal(&error)),
    }
}

/// What stands against an eviction: the budget, by its name, or whatever the server says.
fn refusal(error: &client::Error) -> String {
    let Some(status) = error.status() else { return error.to_string() };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<_> = causes.map(|cause| cause.message.as_str()).collect();
    if causes.is_empty() { status.message.clone() } else { causes.join("; ") }
}

/// Takes a Node away whose machine is about to end: what comes under its name has another.
pub(crate) async fn forget(client: &Client, node: &str) -> Result<(), Error> {
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
    fn static_pods_and_those_of_daemon_sets_stay() {
        let pod = |extra: Value| {
            let mut pod = json!({"metadata": {"name": "a", "namespace": "b"}});
            pod.set("metadata", extra);
            pod
        };
        let owner = |kind: &str| json!({"ownerReferences": [{"kind": kind, "controller": true}]});
        assert!(goes(&pod(json!({}))) && goes(&pod(owner("ReplicaSet"))));
        assert!(!goes(&pod(owner("DaemonSet"))));
        assert!(!goes(&pod(json!({"annotations": {MIRROR: "hash"}}))));
    }

    #[test]
    fn the_budget_that_holds_a_pod_is_named() {
        let status = |details: Value| {
            let text = json!({"code": 429, "reason": "TooManyRequests", "message": "Cannot evict pod", "details": details});
            let status: Status = serde_json::from_value(text).unwrap();
            refusal(&client::Error::Api {
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
