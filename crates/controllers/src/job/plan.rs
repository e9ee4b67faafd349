use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api_meta::Timestamp;
use events::EventKind;
use serde_json::{Value, json};

use super::{FINALIZER, indexes};
use crate::{
    context::count,
    pods::{OwnerOf, from_template, removal_order},
    views::{Condition, Job, Pod, Uncounted, condition},
};

pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Pods to make, with their indexes where the Job has any.
    pub(super) create: Vec<Option<i64>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Recorded in the status, so their finalizer may go.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) status: Value,
    pub(super) events: Vec<(EventKind, &'static str, String)>,
    pub(super) again: Option<Duration>,
}

fn failed(pod: &Pod) -> bool {
    pod.status.phase == "Failed" || (pod.metadata.terminating() && pod.status.phase != "Succeeded")
}

fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().any(|f| f == FINALIZER)
}

fn index(pod: &Pod) -> Option<i64> {
    pod.metadata.annotations.get(INDEX).and_then(|text| text.parse().ok())
}

/// What is known of the Pods that have ended.
struct Tally {
    uncounted: Uncounted,
    succeeded: i64,
    failed: i64,
    indexes: BTreeSet<i64>,
}

impl Tally {
    /// All that ended, counted or about to be.
    fn all(&self) -> (i64, i64) {
        (
            self.succeeded + self.uncounted.succeeded.len() as i64,
            self.failed + self.uncounted.failed.len() as i64,
        )
    }
}

/// Pods pass from running to recorded to counted: recorded ones whose finalizer is gone are counted, ended
/// ones that still have it are recorded.
fn tally(job: &Job, pods: &[Arc<Pod>]) -> Tally {
    let status = &job.status;
    let before = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let held = |uid: &String| pods.iter().any(|pod| pod.metadata.uid == *uid && tracked(pod));
    let (mut succeeded, mut failures) = (status.succeeded, status.failed);
    let settle = |uids: &[String]| -> (Vec<String>, i64) {
        let (kept, settled): (Vec<_>, Vec<_>) = uids.iter().cloned().partition(held);
        (kept, settled.len() as i64)
    };
    let limit = job.spec.completions.unwrap_or(0);
    let mut done = indexes::parse(status.completed_indexes.as_deref().unwrap_or(""), limit);
    let (won, more_won) = settle(&before.succeeded);
    let (lost, more_lost) = settle(&before.failed);
    succeeded += more_won;
    failures += more_lost;
    let mut uncounted = Uncounted { succeeded: won, failed: lost };
    for pod in pods.iter().filter(|pod| tracked(pod)) {
        let uid = &pod.metadata.uid;
        if pod.status.phase == "Succeeded" {
            if job.indexed() {
                // An index succeeds once, however many Pods it took; the set of indexes is its own record.
                done.extend(index(pod).filter(|i| *i < limit));
            }
            if !uncounted.succeeded.contains(uid) {
                uncounted.succeeded.push(uid.clone());
            }
        } else if failed(pod) && !uncounted.failed.contains(uid) {
            uncounted.failed.push(uid.clone());
        }
    }
    if job.indexed() {
        succeeded = done.len() as i64 - uncounted.succeeded.len() as i64;
    }
    Tally { uncounted, succeeded, failed: failures, indexes: done }
}

struct Conditions {
    list: Vec<Condition>,
    now: Timestamp,
}

impl Conditions {
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) -> bool {
        if condition(&self.list, kind).is_some_and(|c| c.status == status) {
            return false;
        }
        self.list.retain(|c| c.r#type != kind);
        self.list.push(Condition {
            r#type: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(self.now),
            ..Condition::default()
        });
        true
    }
}

/// `caught_up` says whether `pods` shows all that was done before.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp, caught_up: bool) -> Plan {
    let now = now.to_seconds();
    let tally = tally(job, pods);
    let mut plan = Plan::default();
    let recorded = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
    let all = [&tally.uncounted.succeeded[..], &tally.uncounted.failed].concat();
    plan.release = pods
        .iter()
        .filter(|pod| tracked(pod) && all.contains(&pod.metadata.uid))
        .cloned()
        .collect();
    let active: Vec<_> = pods.iter().filter(|pod| pod.active()).cloned().collect();
    let terminating =
        pods.iter().filter(|p| p.metadata.terminating() && !p.finished()).count() as i64;
    let mut conditions = Conditions { list: job.status.conditions.clone(), now };
    let mut start = job.status.start_time;
    let mut completion = job.status.completion_time;
    if start.is_none() && !job.spec.suspend {
        start = Some(now);
    }
    let over = job.finished().is_some();
    if !over {
        judge(job, &tally, &active, start, &mut conditions, &mut plan);
        let met = condition(&conditions.list, "SuccessCriteriaMet").cloned();
        let failing = condition(&conditions.list, "FailureTarget").cloned();
        let idle = active.is_empty() && terminating == 0 && caught_up;
        match (met, failing) {
            (Some(c), _) => {
                plan.delete = active.clone();
                if idle && conditions.set("Complete", "True", reason(&c), message(&c)) {
                    completion = Some(now);
                    plan.events.push((EventKind::Normal, "Completed", "Job completed".into()));
                }
            }
            (None, Some(c)) => {
                plan.delete = active.clone();
                if idle {
                    conditions.set("Failed", "True", reason(&c), message(&c));
                    plan.events.push((
                        EventKind::Warning,
                        failure_event(&c),
                        message(&c).to_owned(),
                    ));
                }
            }
            (None, None) if job.spec.suspend => {
                suspend(job, &active, &mut start, &mut conditions, &mut plan)
            }
            (None, None) => {
                if condition(&conditions.list, "Suspended").is_some_and(|c| c.status == "True") {
                    conditions.set("Suspended", "False", "JobResumed", "Job resumed");
                    start = Some(now);
                    plan.events.push((EventKind::Normal, "Resumed", "Job resumed".into()));
                }
                manage(job, pods, &active, terminating, &tally, now, &mut plan);
            }
        }
    }
    if !caught_up {
        plan.create.clear();
        plan.delete.clear();
    }
    let ready = active.iter().filter(|pod| pod.ready()).count() as i64;
    let settled = recorded == tally.uncounted && tally.uncounted == Uncounted::default();
    plan.status = json!({
        "startTime": start,
        "completionTime": completion,
        "active": count(active.len() as i64),
        "ready": count(ready),
        "terminating": count(terminating),
        "succeeded": count(tally.succeeded.max(0)),
        "failed": count(tally.failed),
        "completedIndexes": if job.indexed() && !tally.indexes.is_empty() {
            json!(indexes::format(&tally.indexes))
        } else {
            Value::Null
        },
        "uncountedTerminatedPods": if settled && over { json!({}) } else { uncounted(&tally.uncounted) },
        "conditions": if conditions.list.is_empty() { Value::Null } else { json!(conditions.list) },
    });
    plan
}

fn uncounted(uncounted: &Uncounted) -> Value {
    let list = |uids: &Vec<String>| if uids.is_empty() { Value::Null } else { json!(uids) };
    json!({"succeeded": list(&uncounted.succeeded), "failed": list(&uncounted.failed)})
}

fn reason(condition: &Condition) -> &str {
    condition.reason.as_deref().unwrap_or("")
}

fn message(condition: &Condition) -> &str {
    condition.message.as_deref().unwrap_or("")
}

fn failure_event(condition: &Condition) -> &'static str {
    if reason(condition) == "DeadlineExceeded" {
        "DeadlineExceeded"
    } else {
        "BackoffLimitExceeded"
    }
}

/// Whether the Job has been won or lost.
fn judge(
    job: &Job,
    tally: &Tally,
    active: &[Arc<Pod>],
    start: Option<Timestamp>,
    conditions: &mut Conditions,
    plan: &mut Plan,
) {
    if ["SuccessCriteriaMet", "FailureTarget"]
        .iter()
        .any(|c| condition(&conditions.list, c).is_some())
    {
        return;
    }
    let (succeeded, failed) = tally.all();
    let won = match job.spec.completions {
        Some(wanted) => succeeded >= wanted,
        None => succeeded > 0 && active.is_empty(),
    };
    // A container restarted in place has failed as a Pod would have.
    let on_failure = job.spec.template["spec"]["restartPolicy"] == "OnFailure";
    let restarts: i64 = if on_failure { active.iter().map(|pod| pod.restarts()).sum() } else { 0 };
    let limit = job.spec.backoff_limit.unwrap_or(6);
    let late = job
        .spec
        .active_deadline_seconds
        .zip(start)
        .filter(|_| !job.spec.suspend)
        .map(|(seconds, start)| start.unix() + seconds - conditions.now.unix());
    if won {
        let message = "Reached expected number of succeeded pods";
        conditions.set("SuccessCriteriaMet", "True", "CompletionsReached", message);
    } else if failed > limit || (on_failure && restarts > 0 && failed + restarts > limit) {
        let message = "Job has reached the specified backoff limit";
        conditions.set("FailureTarget", "True", "BackoffLimitExceeded", message);
    } else if let Some(left) = late {
        if left <= 0 {
            let message = "Job was active longer than specified deadline";
            conditions.set("FailureTarget", "True", "DeadlineExceeded", message);
        } else {
            plan.again = Some(Duration::from_secs(left as u64));
        }
    }
}

fn suspend(
    job: &Job,
    active: &[Arc<Pod>],
    start: &mut Option<Timestamp>,
    conditions: &mut Conditions,
    plan: &mut Plan,
) {
    plan.delete = active.to_vec();
    if conditions.set("Suspended", "True", "JobSuspended", "Job suspended")
        && job.status.start_time.is_some()
    {
        plan.events.push((EventKind::Normal, "Suspended", "Job suspended".into()));
    }
    *start = None;
}

/// Makes as many Pods run as may and need to.
fn manage(
    job: &Job,
    pods: &[Arc<Pod>],
    active: &[Arc<Pod>],
    terminating: i64,
    tally: &Tally,
    now: Timestamp,
    plan: &mut Plan,
) {
    let parallelism = job.spec.parallelism.unwrap_or(1);
    let (succeeded, _) = tally.all();
    let wanted = match job.spec.completions {
        Some(completions) => parallelism.min((completions - succeeded).max(0)),
        // A work queue: once one has succeeded, no more are started.
        None if succeeded > 0 => parallelism.min(active.len() as i64),
        None => parallelism,
    };
    let have = active.len() as i64;
    if have > wanted {
        let mut surplus = active.to_vec();
        removal_order(&mut surplus, |_| 0, now);
        surplus.truncate((have - wanted) as usize);
        plan.delete = surplus;
        return;
    }
    // A Pod that is ending still counts where two at once would be wrong.
    let replace_late = job.spec.pod_replacement_policy.as_deref() == Some("Failed");
    let missing = wanted - have - if replace_late { terminating } else { 0 };
    if missing <= 0 {
        return;
    }
    if let Some(wait) = backoff(job, pods, now) {
        plan.again = Some(plan.again.map_or(wait, |again| again.min(wait)));
        return;
    }
    let missing = usize::try_from(missing.min(500)).unwrap_or(0);
    if job.indexed() {
        let running: BTreeSet<i64> = active.iter().filter_map(|pod| index(pod)).collect();
        let open = (0..job.spec.completions.unwrap_or(0))
            .filter(|i| !running.contains(i) && !tally.indexes.contains(i));
        plan.create = open.take(missing).map(Some).collect();
    } else {
        plan.create = vec![None; missing];
    }
}

/// How long to wait after failures: 10 s, doubling with each in a row, ten minutes at most.
fn backoff(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let ended = |pod: &Pod| {
        let containers = pod.status.container_statuses.iter();
        let last = containers.filter_map(|c| c.state.terminated.as_ref()?.finished_at).max();
        last.or(pod.metadata.deletion_timestamp).or(pod.metadata.creation_timestamp)
    };
    let mut ends: Vec<_> = pods
        .iter()
        .filter(|pod| pod.finished() || pod.metadata.terminating())
        .filter_map(|pod| Some((ended(pod)?, failed(pod))))
        .collect();
    ends.sort();
    let in_a_row = ends.iter().rev().take_while(|(_, failed)| *failed).count();
    // The Pods of earlier failures may be gone.
    let in_a_row = in_a_row.max(usize::from(in_a_row > 0 && job.status.failed > 0));
    if in_a_row == 0 {
        return None;
    }
    let delay = Duration::from_secs((10_u64 << (in_a_row - 1).min(10)).min(600));
    let due = ends.last()?.0.plus(delay);
    (due > now).then(|| due.since(now))
}

pub(super) fn pod_for(owner: &OwnerOf, job: &Job, index: Option<i64>) -> Value {
    let mut pod = from_template(owner, &job.spec.template);
    let mut finalizers = pod["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.push(json!(FINALIZER));
    pod["metadata"]["finalizers"] = json!(finalizers);
    let Some(index) = index else { return pod };
    let text = index.to_string();
    pod["metadata"]["generateName"] = json!(format!("{}-{index}-", job.metadata.name));
    pod["metadata"]["annotations"][INDEX] = json!(text);
    pod["metadata"]["labels"][INDEX] = json!(text);
    pod["spec"]["hostname"] = json!(format!("{}-{index}", job.metadata.name));
    let path = format!("metadata.annotations['{INDEX}']");
    let variable = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    for field in ["initContainers", "containers"] {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten() {
            let mut variables = container["env"].as_array().cloned().unwrap_or_default();
            if !variables.iter().any(|v| v["name"] == "JOB_COMPLETION_INDEX") {
                variables.push(variable.clone());
            }
            container["env"] = json!(variables);
        }
    }
    pod
}
