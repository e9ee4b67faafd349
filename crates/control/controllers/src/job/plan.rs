use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api_meta::{Timestamp, Tree as _};
use events::EventKind;
use serde_json::{Value, json};

use super::{
    FINALIZER,
    failure::{Meaning, failed, meaning},
    indexes,
    per_index::{self, Failures, LastFailedPods},
    success,
};
use crate::{
    context::count,
    pods::{OwnerOf, from_template, removal_order},
    views::{Condition, Job, Pod, UncountedPods, condition},
};

pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<NewPod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that the status records, so that their finalizer can be removed.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) status: Value,
    pub(super) events: Vec<(EventKind, &'static str, String)>,
    pub(super) again: Option<Duration>,
}

/// A Pod to create, with its index and failure counts if the Job has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NewPod {
    pub(super) index: Option<i64>,
    pub(super) failures: Option<Failures>,
}

pub(super) fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().any(|f| f == FINALIZER)
}

/// Reports whether the Pod is terminating but has not ended.
fn ending(pod: &Pod) -> bool {
    pod.metadata.terminating() && !pod.finished()
}

pub(super) fn index(pod: &Pod) -> Option<i64> {
    pod.metadata.annotations.get(INDEX).and_then(|text| text.parse().ok())
}

/// The counts of the Pods that have ended.
struct Tally {
    uncounted: UncountedPods,
    succeeded: i64,
    failed: i64,
    indexes: BTreeSet<i64>,
    /// The failed indexes that are not retried; `None` without a backoff limit per index.
    lost: Option<BTreeSet<i64>>,
}

impl Tally {
    /// Returns the Pods that (succeeded, failed), including those not counted yet.
    fn all(&self) -> (i64, i64) {
        (
            self.succeeded + self.uncounted.succeeded.len() as i64,
            self.failed + self.uncounted.failed.len() as i64,
        )
    }
}

/// Records ended Pods that have the finalizer, and counts recorded Pods that do not have it any more.
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
    let mut uncounted = UncountedPods { succeeded: won, failed: lost };
    for pod in pods.iter().filter(|pod| tracked(pod)) {
        let uid = &pod.metadata.uid;
        if pod.status.phase == "Succeeded" {
            if job.indexed() {
                // An index succeeds once, however many Pods it took. The set of indexes is the record.
                done.extend(index(pod).filter(|i| *i < limit));
            }
            if !uncounted.succeeded.contains(uid) {
                uncounted.succeeded.push(uid.clone());
            }
        } else if failed(job, pod)
            && meaning(job, pod) != Meaning::Ignored
            && !uncounted.failed.contains(uid)
        {
            uncounted.failed.push(uid.clone());
        }
    }
    let known = indexes::parse(status.failed_indexes.as_deref().unwrap_or(""), limit);
    let per_index = job.indexed() && job.spec.backoff_limit_per_index.is_some();
    let lost = per_index.then(|| per_index::failed_indexes(job, pods, known));
    if job.indexed() {
        succeeded = done.len() as i64 - uncounted.succeeded.len() as i64;
    }
    Tally { uncounted, succeeded, failed: failures, indexes: done, lost }
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

/// Plans for a Job. `caught_up` is `true` if `pods` shows all earlier writes.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp, caught_up: bool) -> Plan {
    let now = now.to_seconds();
    let tally = tally(job, pods);
    let mut plan = Plan::default();
    let recorded = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
    let over = job.finished().is_some();
    let last = match &tally.lost {
        Some(lost) if !over => LastFailedPods::of(job, pods)
            .of_indexes(|index| !lost.contains(index) && !tally.indexes.contains(index)),
        _ => LastFailedPods::default(),
    };
    let ended = |pod: &Pod| pod.status.phase == "Succeeded" || failed(job, pod);
    plan.release =
        pods.iter().filter(|pod| tracked(pod) && ended(pod) && !last.holds(pod)).cloned().collect();
    let active: Vec<_> = pods.iter().filter(|pod| pod.active()).cloned().collect();
    let terminating = pods.iter().filter(|pod| ending(pod)).count() as i64;
    let mut conditions = Conditions { list: job.status.conditions.clone(), now };
    let mut start = job.status.start_time;
    let mut completion = job.status.completion_time;
    if start.is_none() && !job.spec.suspend {
        start = Some(now);
    }
    if !over {
        judge(job, &tally, pods, &active, start, &mut conditions, &mut plan);
        let met = condition(&conditions.list, "SuccessCriteriaMet").cloned();
        let failing = condition(&conditions.list, "FailureTarget").cloned();
        // The Job is over when every Pod has ended and is counted.
        let counted = tally.uncounted == UncountedPods::default();
        let idle = active.is_empty() && terminating == 0 && counted && caught_up;
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
                manage(job, pods, &active, &tally, &last, now, &mut plan);
            }
        }
    }
    if !caught_up {
        plan.create.clear();
        plan.delete.clear();
    }
    let ready = active.iter().filter(|pod| pod.ready()).count() as i64;
    let settled = recorded == tally.uncounted && tally.uncounted == UncountedPods::default();
    plan.status = json!({
        "startTime": start,
        "completionTime": completion,
        "active": count(active.len() as i64),
        "ready": ready,
        "terminating": terminating,
        "succeeded": count(tally.succeeded.max(0)),
        "failed": count(tally.failed),
        "completedIndexes": if job.indexed() && !tally.indexes.is_empty() {
            json!(indexes::format(&tally.indexes))
        } else {
            Value::Null
        },
        "failedIndexes": tally.lost.as_ref().map(indexes::format),
        "uncountedTerminatedPods": if settled && over { json!({}) } else { uncounted(&tally.uncounted) },
        "conditions": if conditions.list.is_empty() { Value::Null } else { json!(conditions.list) },
    });
    plan
}

fn uncounted(uncounted: &UncountedPods) -> Value {
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
    let known =
        ["DeadlineExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded"];
    known.into_iter().find(|known| reason(condition) == *known).unwrap_or("BackoffLimitExceeded")
}

/// Decides whether the Job has succeeded or failed.
fn judge(
    job: &Job,
    tally: &Tally,
    pods: &[Arc<Pod>],
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
    let (succeeded, failures) = tally.all();
    let won = match job.spec.completions {
        Some(wanted) => succeeded >= wanted,
        None => succeeded > 0 && active.is_empty(),
    };
    // A container that restarts in place counts as a failed Pod.
    let on_failure = job.spec.template["spec"]["restartPolicy"] == "OnFailure";
    let restarts: i64 = if on_failure { active.iter().map(|pod| pod.restarts()).sum() } else { 0 };
    let limit = job.spec.backoff_limit.unwrap_or(6);
    let late = job
        .spec
        .active_deadline_seconds
        .zip(start)
        .filter(|_| !job.spec.suspend)
        .map(|(seconds, start)| start.unix().saturating_add(seconds) - conditions.now.unix());
    let mut broken =
        pods.iter().filter(|pod| failed(job, pod)).filter_map(|pod| match meaning(job, pod) {
            Meaning::FailsJob(message) => Some(message),
            _ => None,
        });
    if let Some(message) = broken.next() {
        conditions.set("FailureTarget", "True", "PodFailurePolicy", &message);
    } else if failures > limit || (on_failure && restarts > 0 && failures + restarts > limit) {
        let message = "Job has reached the specified backoff limit";
        conditions.set("FailureTarget", "True", "BackoffLimitExceeded", message);
    } else if late.is_some_and(|left| left <= 0) {
        let message = "Job was active longer than specified deadline";
        conditions.set("FailureTarget", "True", "DeadlineExceeded", message);
    } else if let Some((reason, message)) = too_many_lost(job, tally) {
        conditions.set("FailureTarget", "True", reason, message);
    } else if let Some(message) = success::met(job, &tally.indexes) {
        conditions.set("SuccessCriteriaMet", "True", "SuccessPolicy", &message);
    } else if won {
        let message = "Reached expected number of succeeded pods";
        conditions.set("SuccessCriteriaMet", "True", "CompletionsReached", message);
    } else if let Some(left) = late {
        plan.again = Some(Duration::from_secs(left.unsigned_abs()));
    }
}

/// Returns reason and message if too many indexes failed or none is left to run.
fn too_many_lost(job: &Job, tally: &Tally) -> Option<(&'static str, &'static str)> {
    let lost = tally.lost.as_ref().filter(|lost| !lost.is_empty())?;
    let (count, all) = (lost.len() as i64, lost.union(&tally.indexes).count() as i64);
    if job.spec.max_failed_indexes.is_some_and(|most| count > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return Some(("MaxFailedIndexesExceeded", message));
    }
    (all >= job.spec.completions.unwrap_or(0))
        .then_some(("FailedIndexes", "Job has failed indexes"))
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

/// Plans the Pods to create and delete for the wanted parallelism.
fn manage(
    job: &Job,
    pods: &[Arc<Pod>],
    active: &[Arc<Pod>],
    tally: &Tally,
    last: &LastFailedPods,
    now: Timestamp,
    plan: &mut Plan,
) {
    let parallelism = job.spec.parallelism.unwrap_or(1);
    let (succeeded, _) = tally.all();
    let wanted = match job.spec.completions {
        Some(completions) => parallelism.min((completions - succeeded).max(0)),
        // A work queue Job starts no Pods after the first success.
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
    // A terminating Pod still counts if its replacement must wait for its end.
    let late = pods.iter().filter(|pod| job.replaces_late() && ending(pod)).count() as i64;
    let missing = wanted - have - late;
    let missing = usize::try_from(missing.clamp(0, 500)).unwrap_or(0);
    if missing == 0 {
        return;
    }
    let wait = match &tally.lost {
        Some(lost) => {
            let open = open_indexes(job, pods, tally, |index| lost.contains(&index));
            let (ready, waits): (Vec<_>, Vec<_>) = open
                .take(missing)
                .map(|index| (index, last.wait(job, index, now)))
                .partition(|(_, wait)| wait.is_none());
            let new =
                |index| NewPod { index: Some(index), failures: Some(last.failures(job, index)) };
            plan.create = ready.into_iter().map(|(index, _)| new(index)).collect();
            waits.into_iter().filter_map(|(_, wait)| wait).min()
        }
        None => {
            let wait = backoff(job, pods, now);
            plan.create = match (wait, job.indexed()) {
                (Some(_), _) => Vec::new(),
                (None, true) => open_indexes(job, pods, tally, |_| false)
                    .take(missing)
                    .map(|index| NewPod { index: Some(index), failures: None })
                    .collect(),
                (None, false) => vec![NewPod::default(); missing],
            };
            wait
        }
    };
    if let Some(wait) = wait {
        plan.again = Some(plan.again.map_or(wait, |again| again.min(wait)));
    }
}

/// Returns the indexes that are neither running nor finished.
fn open_indexes(
    job: &Job,
    pods: &[Arc<Pod>],
    tally: &Tally,
    lost: impl Fn(i64) -> bool,
) -> impl Iterator<Item = i64> {
    let late = job.replaces_late();
    let occupied = |pod: &&Arc<Pod>| pod.active() || (late && ending(pod));
    let taken: BTreeSet<i64> = pods.iter().filter(occupied).filter_map(|pod| index(pod)).collect();
    (0..job.spec.completions.unwrap_or(0)).filter(move |index| {
        !taken.contains(index) && !tally.indexes.contains(index) && !lost(*index)
    })
}

pub(super) fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.container_statuses.iter();
    let last = containers.filter_map(|c| c.state.terminated.as_ref()?.finished_at).max();
    last.or(pod.metadata.deletion_timestamp).or(pod.metadata.creation_timestamp)
}

/// Returns the remaining backoff after this many consecutive failures: 10 s, doubled each time, at most ten minutes.
pub(super) fn wait_after(failures: usize, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(10);
    let due = last.plus(Duration::from_secs((10_u64 << doublings).min(600)));
    (due > now).then(|| due.since(now))
}

/// Returns the delay before the next Pod of a Job without a backoff limit per index.
fn backoff(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let mut ends: Vec<_> = pods
        .iter()
        .filter(|pod| pod.finished() || pod.metadata.terminating())
        .filter_map(|pod| Some((ended_at(pod)?, failed(job, pod))))
        .collect();
    ends.sort();
    let in_a_row = ends.iter().rev().take_while(|(_, failed)| *failed).count();
    // The Pods of earlier failures may be deleted already.
    let in_a_row = in_a_row.max(usize::from(in_a_row > 0 && job.status.failed > 0));
    wait_after(in_a_row, ends.last()?.0, now)
}

pub(super) fn pod_for(owner: &OwnerOf, job: &Job, new: &NewPod) -> Value {
    let mut pod = from_template(owner, &job.spec.template);
    let mut finalizers = pod.items("metadata.finalizers").to_vec();
    finalizers.push(json!(FINALIZER));
    pod.put(&["metadata", "finalizers"], json!(finalizers));
    let Some(index) = new.index else { return pod };
    if let Some(failures) = new.failures {
        failures.note(&mut pod);
    }
    let text = index.to_string();
    pod.put(&["metadata", "generateName"], json!(format!("{}-{index}-", job.metadata.name)));
    pod.put(&["metadata", "annotations", INDEX], json!(text));
    pod.put(&["metadata", "labels", INDEX], json!(text));
    pod.put(&["spec", "hostname"], json!(format!("{}-{index}", job.metadata.name)));
    let path = format!("metadata.annotations['{INDEX}']");
    let variable = json!({"name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    for field in ["initContainers", "containers"] {
        for container in
            pod.at_mut(&["spec", field]).and_then(Value::as_array_mut).into_iter().flatten()
        {
            let mut variables = container.items("env").to_vec();
            if !variables.iter().any(|v| v["name"] == "JOB_COMPLETION_INDEX") {
                variables.push(variable.clone());
            }
            container.put(&["env"], json!(variables));
        }
    }
    pod
}
