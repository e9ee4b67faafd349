//! The status and the conditions of a Deployment.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::plan::{Progress, Snapshot, is_complete};
use crate::{
    context::count,
    views::{Condition, conditions},
};

/// Returns the status of a Deployment, and the seconds until the progress deadline must be checked.
pub(super) fn status(
    snapshot: &Snapshot<'_>,
    progress: Progress,
    collisions: i64,
    create_failure: Option<&str>,
) -> (Value, Option<u64>) {
    let deployment = snapshot.deployment;
    let sum = |field| snapshot.sets.iter().map(|set| set.counted(field)).sum::<i64>();
    let updated = snapshot.current().map_or(0, |new| new.counted("replicas"));
    let available = sum("availableReplicas");
    let specified: i64 = snapshot.sets.iter().map(|set| set.replicas()).sum();
    let counts =
        Counts { replicas: sum("replicas"), updated, ready: sum("readyReplicas"), available };
    let mut all =
        Conditions { list: conditions(&deployment.status), now: snapshot.now.to_seconds() };
    availability(snapshot, available, &mut all);
    pause(deployment.spec.paused, &mut all);
    if let Some(message) = create_failure {
        all.set("Progressing", "False", "ReplicaSetCreateError", message.to_owned());
    } else {
        progressing(snapshot, &progress, &counts, &mut all);
    }
    replica_failure(snapshot, &mut all);
    let next_check = deadline(snapshot, &all);
    let status = json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": count(counts.replicas),
        "updatedReplicas": count(updated),
        "readyReplicas": count(counts.ready),
        "availableReplicas": count(available),
        "unavailableReplicas": count((specified - available).max(0)),
        "terminatingReplicas": sum("terminatingReplicas"),
        "collisionCount": if collisions == 0 { Value::Null } else { json!(collisions) },
        "conditions": all.list,
    });
    (status, next_check)
}

struct Counts {
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
}

struct Conditions {
    list: Vec<Condition>,
    now: api_meta::Timestamp,
}

impl Conditions {
    fn get(&self, kind: &str) -> Option<&Condition> {
        self.list.iter().find(|c| c.r#type == kind)
    }

    fn remove(&mut self, kind: &str) {
        self.list.retain(|c| c.r#type != kind);
    }

    /// Sets a condition. The same status and reason change nothing; the same status keeps its transition time.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let old = self.get(kind);
        if old.is_some_and(|c| c.status == status && c.reason.as_deref() == Some(reason)) {
            return;
        }
        self.renew(kind, status, reason, message);
    }

    fn renew(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let since =
            self.get(kind).filter(|c| c.status == status).and_then(|c| c.last_transition_time);
        let condition = Condition {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: since.or(Some(self.now)),
            last_update_time: Some(self.now),
            ..Condition::default()
        };
        self.remove(kind);
        self.list.push(condition);
    }
}

fn availability(snapshot: &Snapshot<'_>, available: i64, all: &mut Conditions) {
    let (_, unavailable) = snapshot.limits();
    let (status, reason, message) = if available >= snapshot.desired_replicas() - unavailable {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    all.set("Available", status, reason, message.to_owned());
}

fn pause(paused: bool, all: &mut Conditions) {
    let is_reported =
        all.get("Progressing").is_some_and(|c| c.reason.as_deref() == Some("DeploymentPaused"));
    if paused && !is_reported {
        all.set("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
    } else if !paused && is_reported {
        all.set("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed".to_owned());
    }
}

fn has_deadline(snapshot: &Snapshot<'_>) -> Option<i64> {
    snapshot.deployment.spec.progress_deadline_seconds.filter(|s| *s < i64::from(i32::MAX))
}

fn progressing(
    snapshot: &Snapshot<'_>,
    progress: &Progress,
    counts: &Counts,
    all: &mut Conditions,
) {
    let Some(deadline) = has_deadline(snapshot) else {
        all.remove("Progressing");
        return;
    };
    if let Progress::Created { name } = progress {
        all.set(
            "Progressing",
            "True",
            "NewReplicaSetCreated",
            format!("Created new replica set \"{name}\""),
        );
        return;
    }
    if *progress == Progress::Unchanged {
        return;
    }
    let name = snapshot.current().map_or("", |new| &new.metadata.name);
    if all.get("Progressing").is_none() && !name.is_empty() {
        all.set(
            "Progressing",
            "True",
            "FoundNewReplicaSet",
            format!("Found new replica set \"{name}\""),
        );
    }
    let reason = all.get("Progressing").and_then(|c| c.reason.clone()).unwrap_or_default();
    if counts.replicas == counts.updated && reason == "NewReplicaSetAvailable" {
        return;
    }
    let old = &snapshot.deployment.status;
    let moved = counts.updated > old.int("updatedReplicas")
        || counts.replicas - counts.updated < old.int("replicas") - old.int("updatedReplicas")
        || counts.ready > old.int("readyReplicas")
        || counts.available > old.int("availableReplicas");
    if is_complete(snapshot) {
        let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
        all.set("Progressing", "True", "NewReplicaSetAvailable", message);
    } else if moved {
        all.renew(
            "Progressing",
            "True",
            "ReplicaSetUpdated",
            format!("ReplicaSet \"{name}\" is progressing."),
        );
    } else if timed_out(all, deadline) {
        let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
        all.set("Progressing", "False", "ProgressDeadlineExceeded", message);
    }
}

fn timed_out(all: &Conditions, deadline: i64) -> bool {
    let Some(condition) = all.get("Progressing") else { return false };
    match condition.reason.as_deref() {
        Some("NewReplicaSetAvailable") => false,
        Some("ProgressDeadlineExceeded") => true,
        _ => condition.last_update_time.is_some_and(|at| at.unix() + deadline < all.now.unix()),
    }
}

/// Returns the seconds until the next check of the progress deadline, if the rollout is in progress.
fn deadline(snapshot: &Snapshot<'_>, all: &Conditions) -> Option<u64> {
    let seconds = has_deadline(snapshot).filter(|_| !snapshot.deployment.spec.paused)?;
    let condition = all.get("Progressing")?;
    let settled = matches!(
        condition.reason.as_deref(),
        Some("NewReplicaSetAvailable" | "ProgressDeadlineExceeded" | "DeploymentPaused")
    );
    if settled {
        return None;
    }
    let left = condition.last_update_time?.unix() + seconds - all.now.unix() + 1;
    Some(left.max(1) as u64)
}

/// Copies a set's ReplicaFailure condition to the Deployment.
fn replica_failure(snapshot: &Snapshot<'_>, all: &mut Conditions) {
    let failure = |set: &crate::views::ReplicaSet| {
        conditions(&set.status)
            .into_iter()
            .find(|c| c.r#type == "ReplicaFailure" && c.status == "True")
    };
    let new = snapshot.current().and_then(|new| failure(new));
    let failure = new.or_else(|| snapshot.sets.iter().find_map(|set| failure(set)));
    match failure {
        Some(condition) => {
            let (reason, message) =
                (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default());
            all.set("ReplicaFailure", "True", &reason, message);
        }
        None => all.remove("ReplicaFailure"),
    }
}
