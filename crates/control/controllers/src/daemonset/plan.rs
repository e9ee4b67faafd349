//! Plans the Pods and the status of a DaemonSet.

use std::{collections::HashMap, sync::Arc};

use api_meta::{Timestamp, Tree as _};
use sched_core::Node;
use serde_json::{Value, json};

use crate::{
    context::count,
    history::{CurrentRevision, HASH_LABEL},
    pods::{OwnerOf, from_template},
    views::{Pod, Set},
};

/// The Pods by node name.
pub(super) type ByNode = HashMap<String, Vec<Arc<Pod>>>;

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Node names.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
}

/// The taints that every daemon Pod tolerates: it also runs on nodes that are not ready, under pressure or cordoned.
const TOLERATED: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

fn spec(set: &Set) -> Value {
    let mut spec = set.spec.template["spec"].clone();
    let mut tolerations = spec.items("tolerations").to_vec();
    let mut add = |key: &str, effect: &str| {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    };
    TOLERATED.iter().for_each(|(key, effect)| add(key, effect));
    if spec["hostNetwork"] == true {
        add("node.kubernetes.io/network-unavailable", "NoSchedule");
    }
    spec.put(&["tolerations"], json!(tolerations));
    spec
}

/// Returns a Pod of the set for the node selection checks.
pub(super) fn model_pod(set: &Set) -> sched_core::Pod {
    let pod =
        json!({"metadata": {"name": "", "namespace": set.metadata.namespace}, "spec": spec(set)});
    // The API validated the template, so it decodes. If it does not, the set selects no node.
    serde_json::from_value(pod).unwrap_or_else(|error| {
        tracing::error!(daemonset = %set.metadata.key(), %error, "cannot read the template");
        sched_core::Pod::new(&sched_core::PodView::default())
    })
}

/// The path of a Pod's required node affinity terms.
const TERMS: [&str; 5] = [
    "spec",
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];

/// Builds the Pod for one node. Node affinity pins it there, so that the scheduler still checks the resources.
pub(super) fn pod_for(owner: &OwnerOf, set: &Set, node: &str, hash: &str) -> Value {
    let mut template = set.spec.template.clone();
    template.put(&["spec"], spec(set));
    template.put(&["metadata", "labels", HASH_LABEL], json!(hash));
    let generation = set.metadata.annotations.get("deprecated.daemonset.template.generation");
    if let Some(generation) = generation {
        template.put(&["metadata", "labels", "pod-template-generation"], json!(generation));
    }
    let named = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let terms = template.at_mut(&TERMS).and_then(Value::as_array_mut);
    match terms.filter(|terms| !terms.is_empty()) {
        Some(terms) => terms.iter_mut().for_each(|term| term.put(&["matchFields"], named.clone())),
        None => template.put(&TERMS, json!([{"matchFields": named}])),
    }
    from_template(owner, &template)
}

/// Groups Pods by their node, or by the node that their affinity names.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> ByNode {
    let mut out = ByNode::new();
    for pod in pods {
        let meant = || pod.spec.daemon_node.clone();
        let node = Some(pod.node().to_owned()).filter(|n| !n.is_empty()).or_else(meant);
        if let Some(node) = node {
            out.entry(node).or_default().push(pod.clone());
        }
    }
    out
}

/// A DaemonSet with the nodes and its Pods.
pub(super) struct Snapshot<'a> {
    pub(super) set: &'a Set,
    /// The Pod of [`model_pod`].
    pub(super) model: &'a sched_core::Pod,
    pub(super) nodes: &'a [Arc<Node>],
    pub(super) by_node: &'a ByNode,
    pub(super) now: Timestamp,
}

impl Snapshot<'_> {
    /// Reports whether the node should get a Pod.
    fn is_eligible(&self, node: &Node) -> bool {
        self.model.selects(node) && !self.model.has_untolerated_taint(node)
    }

    /// Reports whether a running Pod may stay on the node.
    fn may_stay(&self, node: &Node) -> bool {
        self.model.selects(node) && !self.model.is_evicted_by_taint(node)
    }

    fn pods_on(&self, node: &Node) -> &[Arc<Pod>] {
        self.by_node.get(&*node.name).map_or(&[][..], Vec::as_slice)
    }
}

/// Plans the Pods to create and delete. `hash` is that of the current template.
pub(super) fn plan(snapshot: &Snapshot<'_>, hash: &str) -> Plan {
    let mut plan = Plan::default();
    for node in snapshot.nodes {
        let pods = snapshot.pods_on(node);
        let staying = || pods.iter().filter(|pod| !pod.metadata.terminating());
        if !snapshot.is_eligible(node) {
            if !snapshot.may_stay(node) {
                plan.delete.extend(staying().cloned());
            }
            continue;
        }
        if pods.is_empty() {
            plan.create.push(node.name.to_string());
            continue;
        }
        let ended = |pod: &&Arc<Pod>| pod.is_finished();
        plan.delete.extend(staying().filter(ended).cloned());
        // The oldest Pod stays; during a surge one Pod of each template may run.
        let mut running: Vec<_> = staying().filter(|pod| !pod.is_finished()).collect();
        running.sort_by_key(|pod| (pod.metadata.creation_timestamp, pod.metadata.name.clone()));
        let surging = limits(snapshot.set, 1).0 > 0;
        let mut kinds: Vec<bool> = Vec::new();
        for pod in running {
            let new = is_new(pod, hash);
            if kinds.contains(&new) || (!surging && !kinds.is_empty()) {
                plan.delete.push(pod.clone());
            }
            kinds.push(new);
        }
    }
    // The Pod garbage collector deletes Pods of deleted nodes.
    if snapshot.set.spec.update_strategy.r#type != "OnDelete" {
        update(snapshot, hash, &mut plan);
    }
    plan
}

fn is_new(pod: &Pod, hash: &str) -> bool {
    pod.metadata.labels.get(HASH_LABEL).is_some_and(|h| h == hash)
}

/// Returns the limits of a rolling update: (nodes with two Pods, nodes without an available Pod).
fn limits(set: &Set, nodes: i64) -> (i64, i64) {
    let update = set.spec.update_strategy.rolling_update.clone().unwrap_or_default();
    let surge = update.max_surge.and_then(|v| v.scaled(nodes, true).ok()).unwrap_or(0);
    let unavailable = update.max_unavailable.map_or(1, |v| v.scaled(nodes, true).unwrap_or(1));
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// Replaces Pods of old templates within the limits of the rolling update.
fn update(snapshot: &Snapshot<'_>, hash: &str, plan: &mut Plan) {
    let nodes = snapshot.nodes.iter();
    let eligible: Vec<_> = nodes.filter(|node| snapshot.is_eligible(node)).collect();
    let (surge, unavailable) = limits(snapshot.set, eligible.len() as i64);
    let (seconds, now) = (snapshot.set.spec.min_ready_seconds, snapshot.now);
    let available = |pod: &Pod| pod.is_available(seconds, now) && !pod.metadata.terminating();
    let (mut without, mut doubled) = (0, 0);
    let mut candidates: Vec<(bool, Arc<Pod>, String)> = Vec::new();
    for node in eligible {
        let pods = snapshot.pods_on(node);
        let new = pods.iter().find(|pod| is_new(pod, hash) && !pod.metadata.terminating());
        let old = pods
            .iter()
            .find(|pod| !is_new(pod, hash) && !pod.metadata.terminating() && !pod.is_finished());
        without += i64::from(!pods.iter().any(|pod| available(pod)));
        match (old, new) {
            (Some(old), Some(new)) => {
                doubled += 1;
                if available(new) || !available(old) {
                    plan.delete.push(old.clone());
                }
            }
            (Some(old), None) => {
                candidates.push((available(old), old.clone(), node.name.to_string()))
            }
            _ => {}
        }
    }
    // Replace unavailable Pods first.
    candidates.sort_by_key(|(available, ..)| *available);
    for (available, pod, node) in candidates {
        if plan.delete.iter().any(|p| p.metadata.uid == pod.metadata.uid) {
            continue;
        }
        if surge > 0 {
            if !available {
                plan.delete.push(pod);
                plan.create.push(node);
            } else if doubled < surge {
                doubled += 1;
                plan.create.push(node);
            }
        } else if !available {
            plan.delete.push(pod);
        } else if without < unavailable {
            without += 1;
            plan.delete.push(pod);
        }
    }
}

/// Returns the status, and the seconds until a Pod becomes available.
pub(super) fn status(snapshot: &Snapshot<'_>, current: &CurrentRevision) -> (Value, Option<u64>) {
    let (set, now) = (snapshot.set, snapshot.now);
    let [mut desired, mut scheduled, mut misscheduled, mut ready, mut available, mut updated] =
        [0_i64; 6];
    let seconds = set.spec.min_ready_seconds;
    let mut next_check = None;
    for node in snapshot.nodes {
        let pods = snapshot.pods_on(node).iter();
        let pods: Vec<_> = pods.filter(|pod| !pod.metadata.terminating()).collect();
        if !snapshot.is_eligible(node) {
            misscheduled += i64::from(!pods.is_empty());
            continue;
        }
        desired += 1;
        let Some(pod) = pods.iter().max_by_key(|pod| pod.metadata.creation_timestamp) else {
            continue;
        };
        scheduled += 1;
        ready += i64::from(pods.iter().any(|pod| pod.is_ready()));
        available += i64::from(pods.iter().any(|pod| pod.is_available(seconds, now)));
        updated += i64::from(is_new(pod, &current.hash));
        if pod.is_ready() && !pod.is_available(seconds, now) {
            let left =
                pod.ready_since().map_or(1, |at| at.unix() + seconds - now.unix()).max(1) as u64;
            next_check = Some(next_check.unwrap_or(left).min(left));
        }
    }
    let status = json!({
        "currentNumberScheduled": scheduled,
        "numberMisscheduled": misscheduled,
        "desiredNumberScheduled": desired,
        "numberReady": ready,
        "observedGeneration": set.metadata.generation,
        "updatedNumberScheduled": count(updated),
        "numberAvailable": count(available),
        "numberUnavailable": count(desired - available),
        "collisionCount": if current.collisions == 0 { Value::Null } else { json!(current.collisions) },
    });
    (status, next_check)
}
