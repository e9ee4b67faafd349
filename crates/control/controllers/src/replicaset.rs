//! Maintains the wanted number of Pods of a template. ReplicationControllers are decoded as ReplicaSets.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api_meta::{Timestamp, Tree as _};
use client::{Error, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    context::{Context, count, synced},
    expectations::Expectations,
    indexes::{OwnerIndex, Selectors},
    pods::{OwnerOf, follow_pods, from_template, removal_order},
    shared::Watched,
    views::{Pod, ReplicaSet, conditions},
};

/// The number of Pods that one reconcile creates or deletes at most.
const BURST: usize = 500;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) create: usize,
    pub(crate) delete: Vec<Arc<Pod>>,
}

/// Plans the Pods to create or delete. `pods` are the set's own; `crowd` is the number of related Pods by node.
pub(crate) fn plan(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    crowd: &HashMap<String, usize>,
    now: Timestamp,
) -> Plan {
    if set.metadata.terminating() {
        return Plan::default();
    }
    let mut active: Vec<_> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    let replicas = usize::try_from(set.replicas()).unwrap_or(0);
    if active.len() <= replicas {
        return Plan { create: (replicas - active.len()).min(BURST), delete: vec![] };
    }
    let surplus = (active.len() - replicas).min(BURST);
    removal_order(&mut active, |pod| crowd.get(pod.node()).copied().unwrap_or(0), now);
    active.truncate(surplus);
    Plan { create: 0, delete: active }
}

/// Returns the status, and the seconds until another Pod becomes available.
pub(crate) fn status(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    failure: Option<(&str, String)>,
    now: Timestamp,
) -> (Value, Option<u64>) {
    let active: Vec<_> = pods.iter().filter(|pod| pod.is_active()).collect();
    let template = set.spec.template.at("metadata.labels");
    let labelled = |pod: &&&Arc<Pod>| {
        template.as_object().is_none_or(|labels| {
            labels.iter().all(|(k, v)| pod.metadata.labels.get(k).map(String::as_str) == v.as_str())
        })
    };
    let seconds = set.spec.min_ready_seconds;
    let available = active.iter().filter(|pod| pod.is_available(seconds, now)).count() as i64;
    let ready = active.iter().filter(|pod| pod.is_ready()).count() as i64;
    let terminating = pods.iter().filter(|p| p.metadata.terminating() && !p.is_finished()).count();
    let mut conditions = conditions(&set.status);
    let old = conditions
        .iter()
        .position(|c| c.r#type == "ReplicaFailure")
        .map(|at| conditions.remove(at));
    let mut conditions: Vec<Value> = conditions.into_iter().map(|c| json!(c)).collect();
    if let Some((reason, message)) = failure {
        let same = old.filter(|old| old.reason.as_deref() == Some(reason));
        let since = same.and_then(|old| old.last_transition_time).unwrap_or(now.to_seconds());
        conditions.push(json!({"type": "ReplicaFailure", "status": "True", "reason": reason,
            "message": message, "lastTransitionTime": since}));
    }
    let waiting = active.iter().filter(|pod| pod.is_ready() && !pod.is_available(seconds, now));
    let next_check = waiting
        .filter_map(|pod| pod.ready_since())
        .map(|at| at.unix() + seconds - now.unix())
        .min();
    let status = json!({
        "replicas": active.len(),
        "fullyLabeledReplicas": count(active.iter().filter(labelled).count() as i64),
        "readyReplicas": count(ready),
        "availableReplicas": count(available),
        "terminatingReplicas": terminating,
        "observedGeneration": set.metadata.generation,
        "conditions": if conditions.is_empty() { Value::Null } else { json!(conditions) },
    });
    (status, next_check.map(|s| s.max(1) as u64))
}

struct Reconciler {
    context: Context,
    resource: Resource,
    sets: Watched<ReplicaSet>,
    own_sets: OwnerIndex<ReplicaSet>,
    own_pods: OwnerIndex<Pod>,
    queue: WorkQueue<String>,
    expectations: Arc<Expectations>,
}

pub(crate) fn start(context: Context) {
    run(context, Resource::REPLICA_SETS, "ReplicaSet");
}

pub(crate) fn start_replication(context: Context) {
    run(context, Resource::REPLICATION_CONTROLLERS, "ReplicationController");
}

fn run(context: Context, resource: Resource, kind: &'static str) {
    let queue = WorkQueue::default();
    let expectations = Arc::new(Expectations::default());
    let sets = context.watch::<ReplicaSet>(resource.clone());
    let pods = context.watch::<Pod>(Resource::PODS);
    sets.on_key(&queue);
    follow_pods(&pods, kind, &queue, &expectations, Selectors::of(&sets));
    let waits = vec![synced(&sets), synced(&pods)];
    let own = Arc::new(Reconciler {
        context: context.clone(),
        resource,
        own_sets: OwnerIndex::of(&sets),
        own_pods: OwnerIndex::of(&pods),
        sets,
        queue: queue.clone(),
        expectations,
    });
    context.run(&queue, 5, waits, own, |own, key| async move { own.reconcile(&key).await });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let owner = OwnerOf::new(self.resource.clone(), &set.metadata);
        let caught_up = self.expectations.met(key, &self.queue);
        let all = self.own_pods.claimable(&set.metadata);
        let pods = self.context.claim(&owner, &set.selector(), &Resource::PODS, all).await?;
        let now = self.context.now();
        let (mut failure, mut result) = (None, Ok(()));
        if caught_up {
            let plan = plan(&set, &pods, &self.crowd(&set, &pods), now);
            if plan.create > 0 {
                self.expectations.expect(key, plan.create, []);
                let pod = from_template(&owner, &set.spec.template);
                let copies = vec![pod; plan.create];
                result = self.context.create_pods(&owner, &copies, &self.expectations).await;
                failure =
                    result.as_ref().err().map(|error| ("FailedCreate", error.server_message()));
            } else if !plan.delete.is_empty() {
                let uids = plan.delete.iter().map(|pod| pod.metadata.uid.as_str());
                self.expectations.expect(key, 0, uids);
                result = self.context.delete_pods(&owner, &plan.delete, &self.expectations).await;
                failure =
                    result.as_ref().err().map(|error| ("FailedDelete", error.server_message()));
            }
        }
        let (status, next_check) = status(&set, &pods, failure, now);
        self.context.merge_status(&self.resource, &set.metadata, &set.status, status).await?;
        if let Some(seconds) = next_check {
            self.queue.add_after(key.to_owned(), Duration::from_secs(seconds));
        }
        result
    }

    /// Counts the running Pods of sets with the same owner, by node.
    fn crowd(&self, set: &ReplicaSet, own: &[Arc<Pod>]) -> HashMap<String, usize> {
        let mut crowd = HashMap::new();
        if own.len() <= usize::try_from(set.replicas()).unwrap_or(0) {
            return crowd;
        }
        let uids: Vec<String> = match set.metadata.controller() {
            None => vec![set.metadata.uid.clone()],
            Some(owner) => {
                let related = self.own_sets.by(&owner.uid);
                related.iter().map(|other| other.metadata.uid.clone()).collect()
            }
        };
        let related = uids.iter().flat_map(|uid| self.own_pods.by(uid));
        for pod in related.filter(|pod| pod.is_active()) {
            *crowd.entry(pod.node().to_owned()).or_default() += 1;
        }
        crowd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, node: &str, phase: &str, ready: bool) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": uid, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": node},
                "status": {"phase": phase, "conditions": [{"type": "Ready",
                    "status": if ready {"True"} else {"False"}, "lastTransitionTime": "2026-01-01T00:00:10Z"}]},
            }))
            .unwrap(),
        )
    }

    fn set(replicas: i64, min_ready: i64) -> ReplicaSet {
        let spec = json!({"replicas": replicas, "minReadySeconds": min_ready});
        serde_json::from_value(json!({"metadata": {"name": "s", "generation": 3}, "spec": spec}))
            .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn creates_missing_pods_and_ignores_ended() {
        let pods = [pod("a", "n", "Running", true), pod("b", "n", "Failed", false)];
        let now = at("2026-01-01T01:00:00Z");
        assert_eq!(plan(&set(3, 0), &pods, &HashMap::new(), now).create, 2);
        assert_eq!(plan(&set(1, 0), &pods, &HashMap::new(), now), Plan::default());
        assert_eq!(plan(&set(2000, 0), &pods, &HashMap::new(), now).create, BURST);
    }

    #[test]
    fn deletes_least_useful_pods_first() {
        let pods = [
            pod("ready", "n1", "Running", true),
            pod("crowded", "n2", "Running", true),
            pod("unready", "n1", "Running", false),
            pod("pending", "n1", "Pending", false),
            pod("unbound", "", "Pending", false),
        ];
        let crowd = HashMap::from([("n1".to_owned(), 1), ("n2".to_owned(), 2)]);
        let order: Vec<_> = (0..5)
            .rev()
            .map(|keep| {
                let plan = plan(&set(keep, 0), &pods, &crowd, at("2026-01-01T01:00:00Z"));
                plan.delete.last().unwrap().metadata.uid.clone()
            })
            .collect();
        assert_eq!(order, ["unbound", "pending", "unready", "crowded", "ready"]);
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let pods = [pod("a", "n", "Running", true)];
        let (early, next_check) = status(&set(1, 30), &pods, None, at("2026-01-01T00:00:20Z"));
        assert_eq!(
            (&early["readyReplicas"], &early["availableReplicas"]),
            (&json!(1), &Value::Null)
        );
        assert_eq!(next_check, Some(20));
        let (late, next_check) = status(&set(1, 30), &pods, None, at("2026-01-01T00:00:40Z"));
        assert_eq!((&late["availableReplicas"], next_check), (&json!(1), None));
        assert_eq!(late["observedGeneration"], 3);
    }
}
