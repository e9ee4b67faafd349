//! Evaluates the Pod failure policy of a Job.

use crate::views::{FailureRule, Job, OnExitCodes, Pod};

/// The effect of a Pod's failure on its Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailureEffect {
    /// Counts towards the backoff limit.
    Counts,
    /// Does not count.
    Ignored,
    /// Ends the retries of the Pod's index.
    FailsIndex,
    /// Fails the Job with this message.
    FailsJob(String),
}

/// Reports whether the Pod failed. A terminating Pod counts as failed unless its Job waits for the Pod's end.
pub(super) fn failed(job: &Job, pod: &Pod) -> bool {
    let ending = pod.metadata.terminating() && pod.status.phase != "Succeeded";
    pod.status.phase == "Failed" || (ending && !job.replaces_late())
}

/// Returns the effect of the first rule that matches a failed Pod.
pub(super) fn meaning(job: &Job, pod: &Pod) -> FailureEffect {
    let rules = job.spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let fitting = rules.enumerate().find_map(|(at, rule)| Some((at, rule, fits(rule, pod)?)));
    let Some((at, rule, description)) = fitting else { return FailureEffect::Counts };
    match rule.action.as_str() {
        "Ignore" => FailureEffect::Ignored,
        "FailIndex" => FailureEffect::FailsIndex,
        "FailJob" => FailureEffect::FailsJob(format!(
            "{description} matching {} rule at index {at}",
            rule.action
        )),
        _ => FailureEffect::Counts,
    }
}

/// Returns a description of the match if the rule matches the Pod.
fn fits(rule: &FailureRule, pod: &Pod) -> Option<String> {
    let name = pod.metadata.key();
    if let Some(codes) = &rule.on_exit_codes {
        let (container, code) = exit_code(codes, pod)?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let holds = |kind: &str, status: &str| {
        pod.status.conditions.iter().any(|c| c.r#type == kind && c.status == status)
    };
    let mut requirement = rule.on_pod_conditions.iter();
    let condition = requirement.find(|requirement| {
        holds(&requirement.r#type, requirement.status.as_deref().unwrap_or("True"))
    })?;
    Some(format!("Pod {name} has condition {}", condition.r#type))
}

fn exit_code<'a>(requirement: &OnExitCodes, pod: &'a Pod) -> Option<(&'a str, i32)> {
    let all = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let named =
        all.filter(|c| requirement.container_name.as_ref().is_none_or(|name| *name == c.name));
    let mut ended =
        named.filter_map(|c| Some((c.name.as_str(), c.state.terminated.as_ref()?.exit_code)));
    let is_in = requirement.operator == "In";
    ended.find(|(_, code)| *code != 0 && requirement.values.contains(code) == is_in)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_matching_rule_decides() {
        let job: Job = serde_json::from_value(json!({"spec": {"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "Count", "onPodConditions": [{"type": "Odd", "status": "False"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [3, 42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
        ]}}}))
        .unwrap();
        let pod = |conditions: serde_json::Value, main: i32, other: i32| -> Pod {
            let ended = |name: &str, code: i32| json!({"name": name, "state": {"terminated": {"exitCode": code}}});
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "n"},
                "status": {"phase": "Failed", "conditions": conditions,
                    "containerStatuses": [ended("main", main)], "initContainerStatuses": [ended("other", other)]},
            }))
            .unwrap()
        };
        let lost =
            "Container main for pod n/p failed with exit code 42 matching FailJob rule at index 2";
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
        let not = json!([{"type": "DisruptionTarget", "status": "False"}]);
        let odd = json!([{"type": "Odd", "status": "False"}]);
        for (conditions, main, other, wanted) in [
            (disrupted, 42, 0, FailureEffect::Ignored),
            (odd, 42, 0, FailureEffect::Counts),
            (not, 42, 0, FailureEffect::FailsJob(lost.to_owned())),
            (json!(null), 0, 42, FailureEffect::FailsIndex),
            (json!(null), 1, 0, FailureEffect::Counts),
            (json!(null), 0, 0, FailureEffect::Counts),
        ] {
            assert_eq!(
                meaning(&job, &pod(conditions.clone(), main, other)),
                wanted,
                "{conditions} {main} {other}"
            );
        }
        let plain = Job::default();
        assert_eq!(meaning(&plain, &pod(json!(null), 42, 0)), FailureEffect::Counts);
    }

    /// A policy without rules, as the API serves it.
    #[test]
    fn accepts_policy_without_rules() {
        let job: Job =
            serde_json::from_value(json!({"spec": {"podFailurePolicy": {"rules": null}}})).unwrap();
        assert!(job.spec.pod_failure_policy.unwrap().rules.is_empty());
    }
}
