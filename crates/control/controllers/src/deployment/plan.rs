//! Plans the ReplicaSets of a Deployment.

use std::{cmp::Reverse, sync::Arc};

use api_meta::{IntOrString, Timestamp, Tree as _};
use serde_json::{Value, json};

use super::revision::{
    DESIRED, HASH_LABEL, MAX, REVISION, find_new, new_annotations, revision, template_hash,
};
use crate::views::{Deployment, Labels, ReplicaSet};

pub(super) struct Snapshot<'a> {
    pub(super) deployment: &'a Deployment,
    /// The ReplicaSets that the Deployment controls.
    pub(super) sets: &'a [Arc<ReplicaSet>],
    pub(super) old_pods_run: bool,
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) enum Action {
    /// Creates a ReplicaSet for the current template.
    Create(Value),
    /// Changes replicas, annotations or minReadySeconds of a ReplicaSet.
    Change {
        set: Arc<ReplicaSet>,
        replicas: i64,
        annotations: Labels,
        min_ready_seconds: Option<i64>,
    },
    /// Deletes an old ReplicaSet beyond the history limit.
    Delete(Arc<ReplicaSet>),
    /// Sets the annotations of the Deployment.
    Annotate(Labels),
}

/// The progress of the rollout for the status.
#[derive(Debug, PartialEq)]
pub(super) enum Progress {
    /// Only counts change, because the Deployment is paused, being scaled or being deleted.
    Unchanged,
    Created {
        name: String,
    },
    Rolling,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    pub(super) progress: Progress,
}

impl Snapshot<'_> {
    pub(super) fn desired_replicas(&self) -> i64 {
        self.deployment.spec.replicas.unwrap_or(1)
    }

    fn is_rolling(&self) -> bool {
        self.deployment.spec.strategy.r#type != "Recreate"
    }

    pub(super) fn current(&self) -> Option<&Arc<ReplicaSet>> {
        find_new(self.deployment, self.sets)
    }

    fn old(&self) -> Vec<Arc<ReplicaSet>> {
        let new = self.current().map(|set| set.metadata.uid.clone());
        let mut old: Vec<_> = self
            .sets
            .iter()
            .filter(|set| Some(&set.metadata.uid) != new.as_ref())
            .cloned()
            .collect();
        old.sort_by_key(|set| (set.metadata.creation_timestamp, set.metadata.name.clone()));
        old
    }

    /// Returns the limits of a rolling update: (Pods above, Pods below the wanted number).
    pub(super) fn limits(&self) -> (i64, i64) {
        if !self.is_rolling() {
            return (0, 0);
        }
        let update = self.deployment.spec.strategy.rolling_update.clone().unwrap_or_default();
        let desired_replicas = self.desired_replicas();
        let resolve = |value: Option<IntOrString>, up| {
            value.and_then(|v| v.scaled(desired_replicas, up).ok()).unwrap_or(0)
        };
        let surge = resolve(update.max_surge, true);
        let unavailable = resolve(update.max_unavailable, false);
        // Two zero limits would prevent any progress.
        if surge == 0 && unavailable == 0 {
            (0, 1)
        } else {
            (surge, unavailable.min(desired_replicas))
        }
    }
}

fn total(sets: &[Arc<ReplicaSet>]) -> i64 {
    sets.iter().map(|set| set.replicas()).sum()
}

pub(super) fn plan(snapshot: &Snapshot<'_>) -> Plan {
    let mut plan = Plan { actions: vec![], progress: Progress::Unchanged };
    if snapshot.deployment.metadata.terminating() {
        return plan;
    }
    if snapshot.deployment.spec.paused {
        note_revision(snapshot, &mut plan);
        scale_all(snapshot, &mut plan);
        clean_up(snapshot, &mut plan);
        return plan;
    }
    if is_being_scaled(snapshot) {
        note_revision(snapshot, &mut plan);
        scale_all(snapshot, &mut plan);
        return plan;
    }
    plan.progress = Progress::Rolling;
    if snapshot.is_rolling() {
        roll(snapshot, &mut plan)
    } else {
        recreate(snapshot, &mut plan)
    }
    plan
}

/// Reports whether the replica count was changed (`kubectl scale`): active sets still carry the old number.
fn is_being_scaled(snapshot: &Snapshot<'_>) -> bool {
    let desired = |set: &ReplicaSet| {
        set.metadata.annotations.get(DESIRED).and_then(|d| d.parse::<i64>().ok())
    };
    let active = snapshot.sets.iter().filter(|set| set.replicas() > 0);
    active.filter_map(|set| desired(set)).any(|desired| desired != snapshot.desired_replicas())
}

/// The revision of the current template: one above the highest of the others.
fn revision_now(snapshot: &Snapshot<'_>) -> i64 {
    snapshot.old().iter().map(|set| revision(set)).max().unwrap_or(0) + 1
}

/// Updates the annotations of the new set and the Deployment's revision.
fn note_revision(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let Some(set) = snapshot.current() else { return };
    let annotations = new_annotations(snapshot.deployment, Some(set), revision_now(snapshot));
    let seconds = snapshot.deployment.spec.min_ready_seconds;
    let min_ready_seconds = (set.spec.min_ready_seconds != seconds).then_some(seconds);
    let number = annotations.get(REVISION).cloned().unwrap_or_default();
    if annotations != set.metadata.annotations || min_ready_seconds.is_some() {
        let (set, replicas) = (set.clone(), set.replicas());
        plan.actions.push(Action::Change { set, replicas, annotations, min_ready_seconds });
    }
    if !number.is_empty() && snapshot.deployment.metadata.annotations.get(REVISION) != Some(&number)
    {
        plan.actions.push(Action::Annotate([(REVISION.to_owned(), number)].into()));
    }
}

fn change(snapshot: &Snapshot<'_>, set: &Arc<ReplicaSet>, replicas: i64, plan: &mut Plan) -> bool {
    let (desired_replicas, (surge, _)) = (snapshot.desired_replicas(), snapshot.limits());
    // Merge with an earlier change of the same set: a second write on the stale version would be refused.
    let earlier = plan.actions.iter().position(|action| {
        matches!(action, Action::Change { set: other, .. } if other.metadata.uid == set.metadata.uid)
    });
    let (mut annotations, min_ready_seconds) = match earlier.map(|at| plan.actions.remove(at)) {
        Some(Action::Change { annotations, min_ready_seconds, .. }) => {
            (annotations, min_ready_seconds)
        }
        _ => (set.metadata.annotations.clone(), None),
    };
    annotations.insert(DESIRED.into(), desired_replicas.to_string());
    annotations.insert(MAX.into(), (desired_replicas + surge).to_string());
    let rescaled = replicas != set.replicas();
    if rescaled || annotations != set.metadata.annotations || min_ready_seconds.is_some() {
        let set = set.clone();
        plan.actions.push(Action::Change { set, replicas, annotations, min_ready_seconds });
    }
    rescaled
}

fn create(snapshot: &Snapshot<'_>, replicas: i64, plan: &mut Plan) {
    let deployment = snapshot.deployment;
    let (meta, spec) = (&deployment.metadata, &deployment.spec);
    let hash = template_hash(&spec.template, deployment.status.int("collisionCount"));
    let name = format!("{}-{hash}", meta.name);
    let mut template = spec.template.clone();
    template.put(&["metadata", "labels", HASH_LABEL], json!(hash));
    let mut selector = json!(spec.selector);
    selector.put(&["matchLabels", HASH_LABEL], json!(hash));
    let number = revision_now(snapshot);
    let mut annotations = new_annotations(deployment, None, number);
    annotations.insert(DESIRED.into(), snapshot.desired_replicas().to_string());
    annotations.insert(MAX.into(), (snapshot.desired_replicas() + snapshot.limits().0).to_string());
    plan.actions.push(Action::Create(json!({
        "metadata": {"name": name, "namespace": meta.namespace, "labels": template["metadata"]["labels"],
            "annotations": annotations},
        "spec": {"replicas": replicas, "minReadySeconds": spec.min_ready_seconds, "selector": selector,
            "template": template},
    })));
    if meta.annotations.get(REVISION) != Some(&number.to_string()) {
        plan.actions.push(Action::Annotate([(REVISION.to_owned(), number.to_string())].into()));
    }
    plan.progress = Progress::Created { name };
}

fn recreate(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    note_revision(snapshot, plan);
    let mut scaled = false;
    for set in snapshot.old().iter().filter(|set| set.replicas() > 0) {
        scaled |= change(snapshot, set, 0, plan);
    }
    if scaled || snapshot.old_pods_run {
        return;
    }
    match snapshot.current() {
        None => create(snapshot, snapshot.desired_replicas(), plan),
        Some(new) => {
            change(snapshot, new, snapshot.desired_replicas(), plan);
            clean_up(snapshot, plan);
        }
    }
}

fn roll(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let (desired_replicas, (surge, _)) = (snapshot.desired_replicas(), snapshot.limits());
    let room = (desired_replicas + surge - total(snapshot.sets)).max(0);
    let Some(new) = snapshot.current() else {
        return create(snapshot, room.min(desired_replicas), plan);
    };
    note_revision(snapshot, plan);
    let size = if new.replicas() >= desired_replicas {
        desired_replicas
    } else {
        new.replicas() + room.min(desired_replicas - new.replicas())
    };
    if size != new.replicas() {
        change(snapshot, new, size, plan);
        return;
    }
    if !scale_down_old(snapshot, new, plan) {
        clean_up(snapshot, plan);
    }
}

/// Scales down old sets as far as enough Pods stay available, unavailable Pods first.
fn scale_down_old(snapshot: &Snapshot<'_>, new: &Arc<ReplicaSet>, plan: &mut Plan) -> bool {
    let old = snapshot.old();
    if total(&old) == 0 {
        return false;
    }
    let least = snapshot.desired_replicas() - snapshot.limits().1;
    let new_unavailable = new.replicas() - new.counted("availableReplicas");
    let mut spare = total(snapshot.sets) - least - new_unavailable;
    let mut sizes: Vec<i64> = old.iter().map(|set| set.replicas()).collect();
    let before = sizes.clone();
    for (set, size) in old.iter().zip(&mut sizes) {
        let broken = *size - set.counted("availableReplicas");
        let cut = broken.min(spare).max(0);
        *size -= cut;
        spare -= cut;
    }
    let available: i64 = snapshot.sets.iter().map(|set| set.counted("availableReplicas")).sum();
    let mut spare = spare.min(available - least).max(0);
    for size in &mut sizes {
        let cut = (*size).min(spare);
        *size -= cut;
        spare -= cut;
    }
    let mut scaled = false;
    for ((set, size), before) in old.iter().zip(sizes).zip(before) {
        if size != before {
            scaled |= change(snapshot, set, size, plan);
        }
    }
    scaled
}

/// Distributes a changed replica count over the sets in proportion, also during a rollout.
fn scale_all(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let desired_replicas = snapshot.desired_replicas();
    let active: Vec<_> = snapshot.sets.iter().filter(|set| set.replicas() > 0).cloned().collect();
    let latest = || snapshot.old().into_iter().max_by_key(|set| set.metadata.creation_timestamp);
    let single = match active.as_slice() {
        [] => snapshot.current().cloned().or_else(latest),
        [one] => Some(one.clone()),
        _ => None,
    };
    if let Some(set) = single {
        change(snapshot, &set, desired_replicas, plan);
        return;
    }
    if let Some(new) = snapshot.current().filter(|new| is_saturated(snapshot, new)) {
        for set in active.iter().filter(|set| set.metadata.uid != new.metadata.uid) {
            change(snapshot, set, 0, plan);
        }
        return;
    }
    if !snapshot.is_rolling() {
        return;
    }
    let allowed = if desired_replicas > 0 { desired_replicas + snapshot.limits().0 } else { 0 };
    let to_add = allowed - total(&active);
    let mut order = active;
    // The largest first; among equals the newest when growing, the oldest when shrinking.
    order.sort_by_key(|set| (Reverse(set.replicas()), set.metadata.creation_timestamp));
    if to_add > 0 {
        order
            .sort_by_key(|set| (Reverse(set.replicas()), Reverse(set.metadata.creation_timestamp)));
    }
    let mut added = 0;
    let mut sizes: Vec<i64> = Vec::new();
    for set in &order {
        let part = proportion(set, allowed, desired_replicas, to_add, added);
        added += part;
        sizes.push(set.replicas() + part);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    for (set, size) in order.iter().zip(sizes) {
        change(snapshot, set, size.max(0), plan);
    }
}

fn is_saturated(snapshot: &Snapshot<'_>, set: &ReplicaSet) -> bool {
    let desired = set.metadata.annotations.get(DESIRED).and_then(|d| d.parse::<i64>().ok());
    let desired_replicas = snapshot.desired_replicas();
    set.replicas() == desired_replicas
        && desired == Some(desired_replicas)
        && set.counted("availableReplicas") == desired_replicas
}

/// Returns a set's share of the replicas to add (or, if negative, to remove), by its former size.
fn proportion(
    set: &ReplicaSet,
    allowed: i64,
    desired_replicas: i64,
    to_add: i64,
    added: i64,
) -> i64 {
    if to_add == 0 || to_add == added {
        return 0;
    }
    let share = if desired_replicas == 0 {
        -set.replicas()
    } else {
        let max = set.metadata.annotations.get(MAX).and_then(|m| m.parse::<i64>().ok());
        let max = max.filter(|m| *m > 0).unwrap_or_else(|| set.counted("replicas").max(1));
        let size = (set.replicas() * allowed) as f64 / max as f64;
        size.round() as i64 - set.replicas()
    };
    let left = to_add - added;
    if to_add > 0 { share.min(left).max(0) } else { share.max(left).min(0) }
}

/// Reports whether all wanted Pods are of the current template and available.
pub(super) fn is_complete(snapshot: &Snapshot<'_>) -> bool {
    let desired_replicas = snapshot.desired_replicas();
    let sum = |field| snapshot.sets.iter().map(|set| set.counted(field)).sum::<i64>();
    let updated = snapshot.current().map_or(0, |new| new.counted("replicas"));
    updated == desired_replicas
        && sum("replicas") == desired_replicas
        && sum("availableReplicas") == desired_replicas
}

/// Deletes the oldest sets beyond the history limit after the rollout is complete.
fn clean_up(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let Some(limit) = snapshot.deployment.spec.revision_history_limit else { return };
    if !is_complete(snapshot) && !snapshot.deployment.spec.paused {
        return;
    }
    let mut old = snapshot.old();
    old.retain(|set| !set.metadata.terminating());
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|set| (revision(set), set.metadata.creation_timestamp));
    for set in old.into_iter().take(surplus) {
        let idle = set.replicas() == 0 && set.counted("replicas") == 0;
        if idle && set.counted("observedGeneration") >= set.metadata.generation {
            plan.actions.push(Action::Delete(set));
        }
    }
}
