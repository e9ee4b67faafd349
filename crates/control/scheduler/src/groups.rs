//! Writes the condition PodGroupScheduled of PodGroups.

use api_meta::Tree as _;
use client::{PatchKind, PatchTarget, Resource};
use sched_core::GroupOutcome;
use serde_json::{Value, json};

use crate::work::{Worker, now};

impl Worker {
    /// Writes the results of scheduling PodGroups to their status. A failure is logged: the Pods are scheduled anyway.
    pub(crate) async fn write_groups(&self, outcomes: &[GroupOutcome]) {
        for outcome in outcomes {
            let (namespace, name) = (&outcome.namespace, &outcome.name);
            let patch = json!({"metadata": {"uid": outcome.uid},
                "status": {"conditions": [condition(outcome)]}});
            let at = PatchTarget { namespace, name, subresource: "status" };
            let (groups, kind) = (&Resource::POD_GROUPS, PatchKind::Strategic);
            match self.client.patch::<Value>(groups, at, kind, &patch).await {
                Ok(_) => {}
                // The group is deleted or was recreated under its name.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => {
                    tracing::warn!(%namespace, %name, %error, "could not write the PodGroup's status");
                }
            }
        }
    }
}

fn condition(outcome: &GroupOutcome) -> Value {
    let reason = match outcome {
        GroupOutcome { scheduled: true, .. } => "Scheduled",
        GroupOutcome { is_error: true, .. } => "SchedulerError",
        _ => "Unschedulable",
    };
    let mut condition = json!({
        "type": "PodGroupScheduled",
        "status": if outcome.scheduled { "True" } else { "False" },
        "reason": reason,
        "message": outcome.message,
    });
    if outcome.is_transition {
        condition.set("lastTransitionTime", json!(now()));
    }
    condition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_keeps_its_time_while_its_status_stays() {
        let mut outcome = GroupOutcome {
            namespace: "n".into(),
            name: "g".into(),
            uid: "u".into(),
            scheduled: false,
            is_error: false,
            message: "no room".into(),
            is_transition: false,
        };
        let expected = json!({"type": "PodGroupScheduled", "status": "False",
            "reason": "Unschedulable", "message": "no room"});
        assert_eq!(condition(&outcome), expected);
        (outcome.scheduled, outcome.is_transition) = (true, true);
        let scheduled = condition(&outcome);
        assert_eq!(
            (&scheduled["status"], &scheduled["reason"]),
            (&json!("True"), &json!("Scheduled"))
        );
        assert!(scheduled["lastTransitionTime"].is_string());
    }
}
