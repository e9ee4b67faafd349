//! Computes how many Pods of a PodDisruptionBudget may be evicted now.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api_meta::{
    IntOrString, LabelSelector, ObjectMeta, OwnerReference, PercentError, Selector, Timestamp,
    Tree as _, null_default,
};
use client::{Error, NotFoundExt as _, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    indexes::{HasSelector, LabelIndex, Selectors, impl_has_meta},
    shared::Watched,
    views::{Deployment, Labels, Pod, ReplicaSet, Set},
};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Budget {
    metadata: ObjectMeta,
    spec: BudgetSpec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetSpec {
    selector: Option<LabelSelector>,
    min_available: Option<IntOrString>,
    max_unavailable: Option<IntOrString>,
}

impl Budget {
    fn covers(&self, labels: &Labels) -> bool {
        self.selector().matches(labels)
    }

    /// Pods whose granted eviction is not visible yet, with the time of the grant.
    fn disrupted(&self) -> BTreeMap<String, Timestamp> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct DisruptedPods {
            #[serde(deserialize_with = "null_default")]
            disrupted_pods: BTreeMap<String, Timestamp>,
        }
        serde_json::from_value::<DisruptedPods>(self.status.clone())
            .unwrap_or_default()
            .disrupted_pods
    }
}

impl_has_meta!(Budget);

impl HasSelector for Budget {
    /// An empty selector selects everything; a missing one selects nothing.
    fn selector(&self) -> Selector {
        LabelSelector::selector_of(self.spec.selector.as_ref())
            .unwrap_or_else(|_| Selector::nothing())
    }
}

/// The time after which a granted eviction that is not visible no longer counts.
const EVICTION_SHOWS: Duration = Duration::from_secs(120);

/// The reason for which the number of expected Pods is unknown.
#[derive(Debug, thiserror::Error)]
enum ScaleError {
    #[error("found no controllers for pod \"{pod}\"")]
    NoController { pod: String },
    #[error("the owner {owner} of pod {pod:?} has no scale")]
    NoScale { owner: String, pod: String },
    #[error(transparent)]
    Percent(#[from] PercentError),
}

/// Computes the status. `replicas` is the replica count of the Pods' owners.
fn plan(
    budget: &Budget,
    pods: &[Arc<Pod>],
    replicas: Result<i64, ScaleError>,
    now: Timestamp,
) -> Value {
    let pods: Vec<_> = pods.iter().filter(|pod| budget.covers(&pod.metadata.labels)).collect();
    let living: Vec<_> = pods.iter().filter(|pod| !pod.is_finished()).collect();
    let mut disrupted = budget.disrupted();
    let before = disrupted.clone();
    disrupted.retain(|name, at| {
        let there = living.iter().any(|p| p.metadata.name == *name && !p.metadata.terminating());
        there && now.since(*at) < EVICTION_SHOWS
    });
    let healthy = living
        .iter()
        .filter(|p| {
            p.is_ready() && !p.metadata.terminating() && !disrupted.contains_key(&p.metadata.name)
        })
        .count() as i64;
    let count = living.len() as i64;
    let needed = replicas.and_then(|replicas| desired(&budget.spec, count, replicas));
    let (expected, desired, allowed) = match &needed {
        Ok((expected, desired)) => {
            (*expected, *desired, if *expected > 0 { (healthy - desired).max(0) } else { 0 })
        }
        Err(_) => (0, 0, 0),
    };
    let (status, reason, message) = match &needed {
        Err(error) => ("False", "SyncFailed", error.to_string()),
        Ok(_) if allowed > 0 => ("True", "SufficientPods", String::new()),
        Ok(_) => ("False", "InsufficientPods", String::new()),
    };
    let old = crate::views::conditions(&budget.status);
    let old = old.iter().find(|c| c.r#type == "DisruptionAllowed" && c.status == status);
    let since = old.and_then(|c| c.last_transition_time).unwrap_or(now.to_seconds());
    // A merge patch removes a key only if it is null.
    let mut entries: BTreeMap<&String, Value> =
        before.keys().map(|name| (name, Value::Null)).collect();
    entries.extend(disrupted.iter().map(|(name, at)| (name, json!(at))));
    json!({
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "disruptedPods": if entries.is_empty() { Value::Null } else { json!(entries) },
        "observedGeneration": budget.metadata.generation,
        "conditions": [{"type": "DisruptionAllowed", "status": status, "reason": reason, "message": message,
            "observedGeneration": budget.metadata.generation, "lastTransitionTime": since}],
    })
}

/// Returns (Pods expected, Pods that must be healthy).
fn desired(spec: &BudgetSpec, count: i64, replicas: i64) -> Result<(i64, i64), ScaleError> {
    if let Some(max) = &spec.max_unavailable {
        let unavailable = max.scaled(replicas, true)?;
        return Ok((replicas, (replicas - unavailable).max(0)));
    }
    match &spec.min_available {
        None => Ok((count, 0)),
        Some(IntOrString::Int(number)) => Ok((count, i64::from(*number))),
        Some(percent) => Ok((replicas, percent.scaled(replicas, true)?)),
    }
}

struct Reconciler {
    context: Context,
    budgets: Watched<Budget>,
    pods: LabelIndex<Pod>,
    sets: Watched<ReplicaSet>,
    controllers: Watched<ReplicaSet>,
    stateful: Watched<Set>,
    deployments: Watched<Deployment>,
    queue: WorkQueue<String>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let pods = context.watch::<Pod>(Resource::PODS);
    let own = Reconciler {
        budgets: context.watch::<Budget>(Resource::POD_DISRUPTION_BUDGETS),
        pods: LabelIndex::of(&pods),
        sets: context.watch::<ReplicaSet>(Resource::REPLICA_SETS),
        controllers: context.watch::<ReplicaSet>(Resource::REPLICATION_CONTROLLERS),
        stateful: context.watch::<Set>(Resource::STATEFUL_SETS),
        deployments: context.watch::<Deployment>(Resource::DEPLOYMENTS),
        context: context.clone(),
        queue: queue.clone(),
    };
    own.budgets.on_key(&queue);
    let (add, budgets) = (queue.clone(), Selectors::of(&own.budgets));
    pods.on(move |change| {
        for pod in [change.old, change.new].into_iter().flatten() {
            let (namespace, labels) = (&pod.metadata.namespace, &pod.metadata.labels);
            budgets.keys(namespace, labels).into_iter().for_each(|key| add.add(key));
        }
    });
    let waits = vec![
        synced(&own.budgets),
        synced(&pods),
        synced(&own.sets),
        synced(&own.controllers),
        synced(&own.stateful),
        synced(&own.deployments),
    ];
    let own = Arc::new(own);
    context.run(&queue, 2, waits, own, |own, key| async move { own.reconcile(&key).await });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(budget) = self.budgets.get(key).filter(|b| !b.metadata.terminating()) else {
            return Ok(());
        };
        let pods = self.pods.selected(&budget.metadata.namespace, &budget.selector());
        let by_count = budget.spec.max_unavailable.is_none()
            && !matches!(budget.spec.min_available, Some(IntOrString::String(_)));
        let replicas = if by_count { Ok(pods.len() as i64) } else { self.replicas(&pods).await? };
        let now = self.context.now();
        let status = plan(&budget, &pods, replicas, now);
        let resource = &Resource::POD_DISRUPTION_BUDGETS;
        self.context.merge_status(resource, &budget.metadata, &budget.status, status).await?;
        if !budget.disrupted().is_empty() {
            self.queue.add_after(key.to_owned(), EVICTION_SHOWS);
        }
        Ok(())
    }

    /// Returns the total replica count of the Pods' owners.
    async fn replicas(&self, pods: &[Arc<Pod>]) -> Result<Result<i64, ScaleError>, Error> {
        let mut owners: BTreeMap<String, i64> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.is_finished()) {
            let Some(owner) = pod.metadata.controller() else {
                let pod = pod.metadata.name.clone();
                return Ok(Err(ScaleError::NoController { pod }));
            };
            if !owners.contains_key(&owner.uid) {
                let Some((uid, replicas)) = self.scale_of(&pod.metadata.namespace, owner).await?
                else {
                    let (owner, pod) = (owner.name.clone(), pod.metadata.name.clone());
                    return Ok(Err(ScaleError::NoScale { owner, pod }));
                };
                // Several ReplicaSets of one Deployment count once.
                owners.insert(owner.uid.clone(), 0);
                owners.insert(uid, replicas);
            }
        }
        Ok(Ok(owners.values().sum()))
    }

    /// Returns the uid and the replica count of the scaled owner.
    async fn scale_of(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, i64)>, Error> {
        let key = format!("{namespace}/{}", owner.name);
        Ok(match owner.kind.as_str() {
            "ReplicaSet" => self.sets.get(&key).map(|set| {
                let above = set.metadata.controller().filter(|above| above.kind == "Deployment");
                let above = above
                    .and_then(|above| self.deployments.get(&format!("{namespace}/{}", above.name)));
                match above {
                    Some(above) => (above.metadata.uid.clone(), above.spec.replicas.unwrap_or(1)),
                    None => (set.metadata.uid.clone(), set.replicas()),
                }
            }),
            "ReplicationController" => {
                self.controllers.get(&key).map(|rc| (rc.metadata.uid.clone(), rc.replicas()))
            }
            "StatefulSet" => self
                .stateful
                .get(&key)
                .map(|s| (s.metadata.uid.clone(), s.spec.replicas.unwrap_or(1))),
            _ => self.foreign_scale(namespace, owner).await?,
        })
    }

    /// Reads the scale subresource of an owner of another kind, if it has one.
    async fn foreign_scale(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, i64)>, Error> {
        let client = &self.context.client;
        let resource = crate::discovery::of_kind(client, &owner.api_version, &owner.kind).await;
        let Ok(resource) = resource else { return Ok(None) };
        let path = resource.object(namespace, &owner.name, "scale");
        let response = client.call(http::Method::GET, &path, "", Default::default()).await;
        Ok(response.or_none()?.and_then(|bytes| {
            let scale: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            scale.opt_int("spec.replicas").map(|replicas| (owner.uid.clone(), replicas))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(spec: Value, status: Value) -> Budget {
        let mut spec = spec;
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        serde_json::from_value(
            json!({"metadata": {"generation": 2}, "spec": spec, "status": status}),
        )
        .unwrap()
    }

    fn pods(ready: usize, unready: usize) -> Vec<Arc<Pod>> {
        let pod = |n: usize| {
            let status = if n < ready { "True" } else { "False" };
            json!({"metadata": {"name": format!("p{n}"), "labels": {"app": "web"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}})
        };
        (0..ready + unready).map(|n| Arc::new(serde_json::from_value(pod(n)).unwrap())).collect()
    }

    #[test]
    fn allows_surplus_disruptions() {
        let now = Timestamp::from_unix(1_000_000, 0);
        for (spec, ready, unready, wanted, allowed, desired) in [
            (json!({"minAvailable": 2}), 3, 0, 3, 1, 2),
            (json!({"minAvailable": 2}), 2, 1, 3, 0, 2),
            (json!({"maxUnavailable": 1}), 3, 0, 3, 1, 2),
            (json!({"maxUnavailable": 1}), 2, 1, 3, 0, 2),
            (json!({"maxUnavailable": "50%"}), 3, 0, 3, 2, 1),
            (json!({"minAvailable": "50%"}), 3, 0, 3, 1, 2),
            (json!({}), 2, 0, 2, 2, 0),
        ] {
            let status =
                plan(&budget(spec.clone(), json!({})), &pods(ready, unready), Ok(wanted), now);
            let found = (status["disruptionsAllowed"].as_i64(), status["desiredHealthy"].as_i64());
            assert_eq!(found, (Some(allowed), Some(desired)), "{spec}");
        }
    }

    #[test]
    fn counts_granted_evictions_until_visible_or_expired() {
        let now = Timestamp::from_unix(1_000_000, 0);
        let at = |ago: i64| Timestamp::from_unix(1_000_000 - ago, 0);
        let granted = json!({"disruptedPods": {"p0": at(10), "p1": at(500), "gone": at(10)}});
        let status = plan(&budget(json!({"minAvailable": 1}), granted), &pods(3, 0), Ok(3), now);
        assert_eq!(status["disruptionsAllowed"], 1);
        assert_eq!(status["disruptedPods"], json!({"p0": at(10), "p1": null, "gone": null}));
    }

    #[test]
    fn allows_no_disruption_for_unknown_scale() {
        let now = Timestamp::from_unix(0, 0);
        let status = plan(
            &budget(json!({"maxUnavailable": 1}), json!({})),
            &pods(3, 0),
            Err(ScaleError::NoController { pod: "p0".into() }),
            now,
        );
        assert_eq!(
            (&status["disruptionsAllowed"], &status["conditions"][0]["reason"]),
            (&json!(0), &json!("SyncFailed"))
        );
    }
}
