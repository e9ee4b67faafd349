//! Deletes terminated Pods beyond a threshold, Pods whose node is deleted, and terminating Pods that no kubelet ends.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api_meta::{PartialObject, Tree as _};
use client::{
    DeleteOptions, Error, NotFoundExt as _, PatchKind, PatchTarget, Preconditions, Resource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{Node, Pod, is_true},
};

const PERIOD: Duration = Duration::from_secs(20);
/// The time that a node must be missing before its Pods are deleted.
const QUARANTINE: Duration = Duration::from_secs(40);

#[derive(Debug, PartialEq, Clone, Copy)]
enum Reason {
    Terminated,
    NodeGone,
    OutOfService,
    Unscheduled,
}

/// The state of a node that decides about its Pods.
#[derive(Debug, PartialEq, Clone, Copy)]
enum NodeState {
    /// Missing for long enough.
    Gone,
    /// Not ready, and an administrator declared by a taint that nothing runs there.
    OutOfService,
    Other,
}

/// Returns the Pods to delete.
fn plan(
    pods: &[Arc<Pod>],
    threshold: usize,
    state: impl Fn(&str) -> NodeState,
) -> Vec<(Arc<Pod>, Reason)> {
    let mut out = Vec::new();
    let mut ended: Vec<_> =
        pods.iter().filter(|p| p.is_finished() && !p.metadata.terminating()).collect();
    if threshold > 0 && ended.len() > threshold {
        ended.sort_by_key(|p| {
            (p.status.reason.as_deref() != Some("Evicted"), p.metadata.creation_timestamp)
        });
        out.extend(
            ended[..ended.len() - threshold].iter().map(|p| ((*p).clone(), Reason::Terminated)),
        );
    }
    for pod in pods {
        let is_terminating = pod.metadata.terminating();
        let reason = match pod.node() {
            "" => is_terminating.then_some(Reason::Unscheduled),
            node => match state(node) {
                NodeState::Gone => Some(Reason::NodeGone),
                NodeState::OutOfService => is_terminating.then_some(Reason::OutOfService),
                NodeState::Other => None,
            },
        };
        out.extend(reason.map(|reason| (pod.clone(), reason)));
    }
    out
}

/// Reports whether an administrator declared the node to be out of service. The taint of a ready node has no effect,
/// because its kubelet may still run the Pods.
fn is_out_of_service(node: &Node) -> bool {
    !is_true(&node.status.conditions, "Ready") && node.is_tainted_out_of_service()
}

pub(crate) fn start(context: Context) {
    let pods = context.watch::<Pod>(Resource::PODS);
    let nodes = context.watch::<Node>(Resource::NODES);
    let run = context.clone();
    context.tasks.keep(context.name, move || collect(run.clone(), pods.clone(), nodes.clone()));
}

async fn collect(context: Context, pods: Watched<Pod>, nodes: Watched<Node>) {
    synced(&pods).await;
    synced(&nodes).await;
    let mut missing = HashMap::new();
    loop {
        sweep(&context, &pods, &nodes, &mut missing).await;
        tokio::time::sleep(PERIOD).await;
    }
}

async fn sweep(
    context: &Context,
    pods: &Watched<Pod>,
    nodes: &Watched<Node>,
    missing: &mut HashMap<String, Instant>,
) {
    let pods = pods.list();
    let now = Instant::now();
    let lost = |pod: &&Arc<Pod>| !pod.node().is_empty() && nodes.get(pod.node()).is_none();
    let unknown: Vec<_> = pods.iter().filter(lost).map(|pod| pod.node().to_owned()).collect();
    missing.retain(|node, _| unknown.contains(node));
    for node in unknown {
        missing.entry(node).or_insert(now);
    }
    let mut gone = Vec::new();
    for (node, since) in missing.iter() {
        // The informer may lag behind, so read the API.
        if now - *since >= QUARANTINE && is_gone(context, node).await {
            gone.push(node.clone());
        }
    }
    let state = |name: &str| match nodes.get(name) {
        None if gone.iter().any(|node| node == name) => NodeState::Gone,
        Some(node) if is_out_of_service(&node) => NodeState::OutOfService,
        _ => NodeState::Other,
    };
    let plan = plan(&pods, context.config.terminated_pod_threshold, state);
    for (pod, why) in plan {
        if let Err(error) = remove(context, &pod, why).await {
            tracing::warn!(pod = %pod.metadata.key(), %error, "could not remove the Pod");
        }
    }
}

async fn is_gone(context: &Context, node: &str) -> bool {
    let response = context.client.get::<PartialObject>(&Resource::NODES, "", node).await;
    response.is_err_and(|error| error.is_not_found())
}

async fn remove(context: &Context, pod: &Pod, why: Reason) -> Result<(), Error> {
    let meta = &pod.metadata;
    tracing::info!(pod = %meta.key(), ?why, "removing the Pod");
    if !pod.is_finished() {
        let mut status = json!({"phase": "Failed"});
        if why == Reason::NodeGone {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists", "lastTransitionTime": context.now().to_seconds()});
            status.set("conditions", vec![condition]);
        }
        let patch = json!({"metadata": {"uid": meta.uid}, "status": status});
        let at =
            PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "status" };
        let kind = PatchKind::Strategic;
        context.client.patch::<Value>(&Resource::PODS, at, kind, &patch).await.or_none()?;
    }
    // No kubelet will confirm the end of these Pods.
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(meta.uid.clone()), resource_version: None }),
        ..DeleteOptions::default()
    };
    match context.client.delete(&Resource::PODS, &meta.namespace, &meta.name, &options).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, phase: &str, created: u8, ending: bool) -> Arc<Pod> {
        let mut value = json!({"metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
            "spec": {"nodeName": node}, "status": {"phase": phase}});
        if ending {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn deletes_oldest_terminated_and_lost_pods() {
        let pods = [
            pod("new", "n", "Succeeded", 9, false),
            pod("old", "n", "Failed", 1, false),
            pod("running", "n", "Running", 0, false),
            pod("lost", "gone", "Running", 0, false),
            pod("nowhere", "", "Pending", 0, true),
            pod("waiting", "", "Pending", 0, false),
            pod("stays", "off", "Running", 0, false),
            pod("stuck", "off", "Running", 0, true),
            pod("stopping", "n", "Running", 0, true),
        ];
        let plan = plan(&pods, 1, |node| match node {
            "gone" => NodeState::Gone,
            "off" => NodeState::OutOfService,
            _ => NodeState::Other,
        });
        let named: Vec<_> = plan.iter().map(|(p, why)| (p.metadata.name.as_str(), *why)).collect();
        assert_eq!(
            named,
            [
                ("old", Reason::Terminated),
                ("lost", Reason::NodeGone),
                ("nowhere", Reason::Unscheduled),
                ("stuck", Reason::OutOfService)
            ]
        );
    }

    #[test]
    fn trusts_the_taint_of_nodes_that_are_not_ready_only() {
        for (ready, key, expected) in [
            ("Unknown", "node.kubernetes.io/out-of-service", true),
            ("False", "node.kubernetes.io/out-of-service", true),
            ("True", "node.kubernetes.io/out-of-service", false),
            ("Unknown", "node.kubernetes.io/unreachable", false),
        ] {
            let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            let node: Node = serde_json::from_value(node).unwrap();
            assert_eq!(is_out_of_service(&node), expected, "{ready} {key}");
        }
    }
}
