//! Plans the Pods and the status of a StatefulSet.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};

use crate::{
    context::count,
    history::{CurrentRevision, HASH_LABEL},
    pods::{OwnerOf, from_template},
    views::{Pod, Set},
};

/// The largest number of Pods that one plan creates. The next plan creates further ones.
const MAX_CREATIONS: usize = 500;

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create {
        ordinal: i64,
        revision: String,
    },
    Delete(Arc<Pod>),
    /// Deletes a failed Pod, which the next reconcile recreates.
    Recreate(Arc<Pod>),
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Seconds until a ready Pod counts as available.
    pub(super) retry_after: Option<u64>,
}

/// Returns the ordinal in a Pod's name if the name belongs to the set.
pub(super) fn ordinal(set: &str, pod: &str) -> Option<i64> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    let plain = number == "0" || !number.starts_with('0');
    number
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| number.parse().ok())
        .flatten()
        .filter(|_| plain)
}

fn replicas(set: &Set) -> i64 {
    set.spec.replicas.unwrap_or(1)
}

fn range(set: &Set) -> std::ops::Range<i64> {
    let start = set.spec.ordinals.as_ref().map_or(0, |o| o.start);
    start..start + replicas(set)
}

fn partition(set: &Set) -> i64 {
    let update = set.spec.update_strategy.rolling_update.as_ref();
    range(set).start + update.and_then(|u| u.partition).unwrap_or(0)
}

fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.get(HASH_LABEL).map_or("", String::as_str)
}

fn is_working(pod: &Pod) -> bool {
    pod.status.phase == "Running" && pod.is_ready() && !pod.metadata.terminating()
}

/// Plans the next steps: in order and one at a time, unless Pods are managed in parallel.
pub(super) fn plan(
    set: &Set,
    pods: &[Arc<Pod>],
    current: &str,
    update: &str,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let in_order = set.spec.pod_management_policy.as_deref() != Some("Parallel");
    let desired = range(set);
    let mut existing: BTreeMap<i64, &Arc<Pod>> = BTreeMap::new();
    for pod in pods {
        existing
            .extend(ordinal(&set.metadata.name, &pod.metadata.name).map(|number| (number, pod)));
    }
    let rolls = set.spec.update_strategy.r#type != "OnDelete";
    for number in desired.clone() {
        let Some(pod) = existing.get(&number).copied() else {
            let former = rolls && number < partition(set);
            let revision = if former { current } else { update }.to_owned();
            plan.steps.push(Step::Create { ordinal: number, revision });
            if in_order || plan.steps.len() >= MAX_CREATIONS {
                return plan;
            }
            continue;
        };
        if pod.is_finished() && !pod.metadata.terminating() {
            plan.steps.push(Step::Recreate(pod.clone()));
            if in_order {
                return plan;
            }
            continue;
        }
        if in_order && !pod.is_available(set.spec.min_ready_seconds, now) {
            plan.retry_after = until_available(set, pod, now);
            // Replace a Pod that never becomes ready, or no update could repair it.
            return replace(set, &existing, update, plan);
        }
        if in_order && !is_working(pod) {
            return replace(set, &existing, update, plan);
        }
    }
    let surplus = || existing.iter().filter(|(number, _)| !desired.contains(number));
    let first_ill = surplus().find(|(_, pod)| !is_working(pod)).map(|(number, _)| *number);
    for (number, pod) in surplus().rev() {
        if pod.metadata.terminating() {
            if in_order {
                return plan;
            }
            continue;
        }
        // In order, no Pod is deleted while another is unhealthy, except for the first unhealthy one.
        let well = is_working(pod) && pod.is_available(set.spec.min_ready_seconds, now);
        if in_order && !well && first_ill != Some(*number) {
            plan.retry_after = until_available(set, pod, now);
            return plan;
        }
        plan.steps.push(Step::Delete((*pod).clone()));
        if in_order {
            return plan;
        }
    }
    replace(set, &existing, update, plan)
}

/// Seconds until a running and ready Pod counts as available.
fn until_available(set: &Set, pod: &Pod, now: Timestamp) -> Option<u64> {
    let left = |at: Timestamp| at.unix() + set.spec.min_ready_seconds - now.unix();
    is_working(pod).then(|| pod.ready_since().map_or(1, left).max(1).unsigned_abs())
}

/// The number of Pods that an update may replace at the same time.
fn max_unavailable(set: &Set) -> i64 {
    let update = set.spec.update_strategy.rolling_update.as_ref();
    let limit = update.and_then(|update| update.max_unavailable.as_ref());
    limit.and_then(|limit| limit.scaled(replicas(set), false).ok()).unwrap_or(1).max(1)
}

/// Deletes Pods of old templates, last first, within maxUnavailable. With 1, all later Pods must be healthy.
fn replace(set: &Set, existing: &BTreeMap<i64, &Arc<Pod>>, update: &str, mut plan: Plan) -> Plan {
    if set.spec.update_strategy.r#type == "OnDelete" {
        return plan;
    }
    let range = range(set);
    let working = existing.range(range.clone()).filter(|(_, pod)| is_working(pod)).count() as i64;
    let most = max_unavailable(set);
    let mut left = most - (replicas(set) - working);
    let mut above = range.end;
    for (number, pod) in existing.range(partition(set).min(range.end)..range.end).rev() {
        let follows = number + 1 == std::mem::replace(&mut above, *number);
        if most == 1 && !follows {
            return plan;
        }
        if revision(pod) != update && !pod.metadata.terminating() {
            // Replacing a Pod that is not ready costs no availability.
            let spare = !is_working(pod) || left > 0 || most == 1;
            if !spare {
                return plan;
            }
            left -= i64::from(is_working(pod));
            plan.steps.push(Step::Delete((*pod).clone()));
            if most == 1 {
                return plan;
            }
        } else if most == 1 && !is_working(pod) {
            return plan;
        }
    }
    plan
}

pub(super) fn pod_for(
    owner: &OwnerOf,
    set: &Set,
    ordinal: i64,
    revision: &str,
    template: &Value,
) -> Value {
    let mut pod = from_template(owner, template);
    let name = format!("{}-{ordinal}", set.metadata.name);
    if let Some(meta) = pod.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
        meta.remove("generateName");
    }
    pod.put(&["metadata", "name"], json!(name));
    for (label, value) in [
        ("statefulset.kubernetes.io/pod-name", name.as_str()),
        ("apps.kubernetes.io/pod-index", &ordinal.to_string()),
        (HASH_LABEL, revision),
    ] {
        pod.put(&["metadata", "labels", label], json!(value));
    }
    pod.put(&["spec", "hostname"], json!(name));
    if let Some(service) = set.spec.service_name.as_ref().filter(|name| !name.is_empty()) {
        pod.put(&["spec", "subdomain"], json!(service));
    }
    let mut volumes = pod.items("spec.volumes").to_vec();
    for claim in &set.spec.volume_claim_templates {
        let volume = claim.at("metadata.name").clone();
        volumes.retain(|v| v["name"] != volume);
        let claim = format!("{}-{name}", volume.as_str().unwrap_or_default());
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
    }
    if !volumes.is_empty() {
        pod.put(&["spec", "volumes"], json!(volumes));
    }
    pod
}

/// Returns the names of one Pod's claims.
pub(super) fn claim_names(set: &Set, pod: &str) -> impl Iterator<Item = String> {
    let volumes = set.spec.volume_claim_templates.iter();
    volumes
        .filter_map(|template| template.at("metadata.name").as_str())
        .map(move |v| format!("{v}-{pod}"))
}

/// Reports whether the Pod's ordinal is outside the set's range.
pub(super) fn is_surplus(set: &Set, pod: &Pod) -> bool {
    let number = ordinal(&set.metadata.name, &pod.metadata.name);
    number.is_some_and(|number| !range(set).contains(&number))
}

/// Builds the claims of one Pod. They outlive the Pod, so that its successor gets the same volumes.
pub(super) fn claims_for(set: &Set, pod: &str) -> Vec<Value> {
    let claim = |template: &Value| {
        let mut claim = template.clone();
        let volume = template.name();
        claim.put(&["metadata", "name"], json!(format!("{volume}-{pod}")));
        claim.put(&["metadata", "namespace"], json!(set.metadata.namespace));
        for (label, value) in claim_labels(set).as_object().into_iter().flatten() {
            claim.put(&["metadata", "labels", label], value.clone());
        }
        claim.as_object_mut().map(|fields| fields.remove("status"));
        claim
    };
    set.spec.volume_claim_templates.iter().map(claim).collect()
}

pub(super) fn status(
    set: &Set,
    pods: &[Arc<Pod>],
    current: &str,
    update: &CurrentRevision,
    now: Timestamp,
) -> Value {
    let running: Vec<_> = pods.iter().filter(|pod| !pod.is_finished()).collect();
    let number =
        |test: &dyn Fn(&Pod) -> bool| running.iter().filter(|pod| test(pod)).count() as i64;
    let ready = number(&is_working);
    let of = |name: &str| number(&|pod| revision(pod) == name && !pod.metadata.terminating());
    let updated = of(&update.name);
    let all = running.len() as i64;
    let desired = replicas(set);
    let done = updated == desired && ready == desired && all == desired;
    let current = if done { &update.name } else { current };
    json!({
        "observedGeneration": set.metadata.generation,
        "replicas": all,
        "readyReplicas": count(ready),
        "availableReplicas": number(&|pod| is_working(pod) && pod.is_available(set.spec.min_ready_seconds, now)),
        "currentReplicas": count(of(current)),
        "updatedReplicas": count(updated),
        "currentRevision": current,
        "updateRevision": update.name,
        "collisionCount": update.collisions,
    })
}

/// The labels of claims are those of the selector, so that they can be found by it.
pub(super) fn claim_labels(set: &Set) -> Value {
    json!(set.spec.selector.as_ref().map(|s| s.match_labels.clone()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: i64, extra: Value) -> Set {
        let mut spec = json!({"replicas": replicas});
        extra.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
        serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": spec})).unwrap()
    }

    fn pod(number: i64, revision: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": format!("db-{number}"), "labels": {HASH_LABEL: revision}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
            }))
            .unwrap(),
        )
    }

    fn steps(set: &Set, pods: &[Arc<Pod>]) -> Vec<String> {
        let now = Timestamp::from_unix(0, 0);
        let texts = plan(set, pods, "old", "new", now).steps.into_iter().map(|step| match step {
            Step::Create { ordinal, revision } => format!("+{ordinal} {revision}"),
            Step::Delete(pod) | Step::Recreate(pod) => format!("-{}", pod.metadata.name),
        });
        texts.collect()
    }

    #[test]
    fn creates_pods_in_order() {
        let three = set(3, json!({}));
        assert_eq!(steps(&three, &[]), ["+0 new"]);
        assert_eq!(steps(&three, &[pod(0, "new", false)]), Vec::<String>::new());
        assert_eq!(steps(&three, &[pod(0, "new", true)]), ["+1 new"]);
        let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
        assert_eq!(steps(&parallel, &[pod(1, "new", false)]), ["+0 new", "+2 new"]);
    }

    #[test]
    fn deletes_and_replaces_from_last() {
        let all = [pod(0, "old", true), pod(1, "old", true), pod(2, "old", true)];
        assert_eq!(steps(&set(1, json!({})), &all), ["-db-2"]);
        assert_eq!(steps(&set(3, json!({})), &all), ["-db-2"]);
        let half = [pod(0, "old", true), pod(1, "old", true), pod(2, "new", true)];
        assert_eq!(steps(&set(3, json!({})), &half), ["-db-1"]);
        let held =
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
        assert_eq!(steps(&set(3, held), &half), Vec::<String>::new());
        assert_eq!(
            steps(&set(3, json!({"updateStrategy": {"type": "OnDelete"}})), &all),
            Vec::<String>::new()
        );
    }

    #[test]
    fn scale_down_waits_for_unhealthy_pods() {
        let none = set(0, json!({}));
        for (ready, wanted) in [
            ([false, false, false], &[][..]),
            ([true, false, false], &[]),
            ([true, false, true], &["-db-2"]),
            ([true, true, false], &["-db-2"]),
            ([false, true, true], &["-db-2"]),
        ] {
            let pods: Vec<_> =
                ready.iter().zip(0..).map(|(ready, n)| pod(n, "new", *ready)).collect();
            assert_eq!(steps(&none, &pods), wanted, "{ready:?}");
        }
        assert_eq!(steps(&none, &[pod(0, "new", true), pod(1, "new", false)]), ["-db-1"]);
        let parallel = set(0, json!({"podManagementPolicy": "Parallel"}));
        let ill = [pod(0, "new", false), pod(1, "new", false)];
        assert_eq!(steps(&parallel, &ill), ["-db-1", "-db-0"]);
    }

    #[test]
    fn replaces_up_to_max_unavailable() {
        let with = |most: Value, partition: i64| {
            set(
                4,
                json!({"podManagementPolicy": "Parallel", "updateStrategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": most, "partition": partition}}}),
            )
        };
        let old = |number| pod(number, "old", true);
        let all = [old(0), old(1), old(2), old(3)];
        assert_eq!(steps(&with(json!(2), 0), &all), ["-db-3", "-db-2"]);
        assert_eq!(steps(&with(json!("50%"), 0), &all), ["-db-3", "-db-2"]);
        assert_eq!(steps(&with(json!("10%"), 0), &all), ["-db-3"], "one at least");
        assert_eq!(steps(&with(json!(3), 2), &all), ["-db-3", "-db-2"], "none below the partition");
        let half = [old(0), old(1), pod(2, "new", true), pod(3, "new", false)];
        assert_eq!(steps(&with(json!(2), 0), &half), ["-db-1"], "one is missing already");
        let three = [old(0), old(1), pod(2, "new", false), pod(3, "new", false)];
        assert_eq!(steps(&with(json!(2), 0), &three), Vec::<String>::new());
        let stuck = [old(0), pod(1, "old", false), pod(2, "new", false), pod(3, "new", true)];
        assert_eq!(
            steps(&with(json!(2), 0), &stuck),
            ["-db-1"],
            "an unavailable Pod is replaced at no cost"
        );
    }

    #[test]
    fn huge_sets_are_planned_in_pieces() {
        let most = json!({"podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}});
        let huge = set(i64::from(i32::MAX), most);
        let next = steps(&huge, &[pod(0, "new", true)]);
        assert_eq!((next.len(), &*next[0]), (MAX_CREATIONS, "+1 new"));
        let in_order = set(i64::from(i32::MAX), json!({}));
        for _ in 0..1000 {
            assert_eq!(steps(&in_order, &[pod(0, "new", false)]), Vec::<String>::new());
        }
    }

    #[test]
    fn replaces_broken_pod() {
        let stuck = [pod(0, "old", true), pod(1, "old", false)];
        assert_eq!(steps(&set(2, json!({})), &stuck), ["-db-1"]);
    }

    #[test]
    fn parses_ordinals_strictly() {
        assert_eq!(ordinal("db", "db-10"), Some(10));
        for other in ["db-01", "db-x", "db-", "dbx-1", "db-1-2"] {
            assert_eq!(ordinal("db", other), None, "{other}");
        }
    }
}
