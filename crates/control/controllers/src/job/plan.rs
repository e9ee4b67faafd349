//! Plans the Pods and the status of a Job.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api_meta::{Timestamp, Tree as _};
use events::EventKind;
use serde_json::{Value, json};

use super::{
    backoff::backoff,
    failure::{FailureEffect, failed, meaning},
    indexes,
    per_index::{self, Failures, LastFailedPods},
    pods::{FINALIZER, INDEX, completion_index, is_ending, is_tracked},
    success,
};
use crate::{
    context::count,
    pods::{OwnerOf, from_template, removal_order},
    views::{Condition, Job, Pod, UncountedPods, condition},
};

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<NewPod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that the status records, so that their finalizer can be removed.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) status: Value,
    pub(super) events: Vec<(EventKind, &'static str, String)>,
    pub(super) retry_after: Option<Duration>,
}

impl Plan {
    fn event(&mut self, kind: EventKind, reason: &'static str, message: &str) {
        self.events.push((kind, reason, message.to_owned()));
    }
}

/// A Pod to create, with its index and failure counts if the Job has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NewPod {
    pub(super) index: Option<i64>,
    pub(super) failures: Option<Failures>,
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
    let held = |uid: &String| pods.iter().any(|pod| pod.metadata.uid == *uid && is_tracked(pod));
    let (mut succeeded, mut failures) = (status.succeeded, status.failed);
    let settle = |uids: &[String]| -> (Vec<String>, i64) {
        let (pending, settled): (Vec<_>, Vec<_>) = uids.iter().cloned().partition(held);
        (pending, settled.len() as i64)
    };
    let limit = job.spec.completions.unwrap_or(0);
    let mut done = indexes::parse(status.completed_indexes.as_deref().unwrap_or(""), limit);
    let (won, more_won) = settle(&before.succeeded);
    let (lost, more_lost) = settle(&before.failed);
    succeeded += more_won;
    failures += more_lost;
    let mut uncounted = UncountedPods { succeeded: won, failed: lost };
    for pod in pods.iter().filter(|pod| is_tracked(pod)) {
        let uid = &pod.metadata.uid;
        if pod.status.phase == "Succeeded" {
            if job.is_indexed() {
                // An index succeeds once, however many Pods it took. The set of indexes is the record.
                done.extend(completion_index(pod).filter(|i| *i < limit));
            }
            if !uncounted.succeeded.contains(uid) {
                uncounted.succeeded.push(uid.clone());
            }
        } else if failed(job, pod)
            && meaning(job, pod) != FailureEffect::Ignored
            && !uncounted.failed.contains(uid)
        {
            uncounted.failed.push(uid.clone());
        }
    }
    let reported = indexes::parse(status.failed_indexes.as_deref().unwrap_or(""), limit);
    let per_index = job.is_indexed() && job.spec.backoff_limit_per_index.is_some();
    let lost = per_index.then(|| per_index::failed_indexes(job, pods, reported));
    if job.is_indexed() {
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
    let snapshot = Snapshot::new(job, pods, now.to_seconds(), caught_up);
    let mut draft = Draft {
        plan: Plan { release: snapshot.released(), ..Plan::default() },
        conditions: Conditions { list: job.status.conditions.clone(), now: snapshot.now },
        start: job.status.start_time,
        completion: job.status.completion_time,
    };
    if draft.start.is_none() && !job.spec.suspend {
        draft.start = Some(snapshot.now);
    }
    if job.finished().is_none() {
        snapshot.judge(&mut draft);
        snapshot.proceed(&mut draft);
    }
    if !caught_up {
        draft.plan.create.clear();
        draft.plan.delete.clear();
    }
    let status = snapshot.status(&draft);
    Plan { status, ..draft.plan }
}

/// A Job with its Pods, and the counts derived from them.
struct Snapshot<'a> {
    job: &'a Job,
    pods: &'a [Arc<Pod>],
    active: Vec<Arc<Pod>>,
    /// The number of Pods that are terminating but have not ended.
    terminating: i64,
    tally: Tally,
    last: LastFailedPods,
    now: Timestamp,
    /// `true` if `pods` shows all earlier writes.
    caught_up: bool,
}

/// A plan in progress.
struct Draft {
    plan: Plan,
    conditions: Conditions,
    start: Option<Timestamp>,
    completion: Option<Timestamp>,
}

impl<'a> Snapshot<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp, caught_up: bool) -> Self {
        let tally = tally(job, pods);
        let last = match &tally.lost {
            Some(lost) if job.finished().is_none() => LastFailedPods::of(job, pods)
                .of_indexes(|index| !lost.contains(index) && !tally.indexes.contains(index)),
            _ => LastFailedPods::default(),
        };
        let active = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
        let terminating = pods.iter().filter(|pod| is_ending(pod)).count() as i64;
        Self { job, pods, active, terminating, tally, last, now, caught_up }
    }

    /// Returns the ended Pods that the status records, so that their finalizer can be removed.
    fn released(&self) -> Vec<Arc<Pod>> {
        let ended = |pod: &Pod| pod.status.phase == "Succeeded" || failed(self.job, pod);
        let pods = self.pods.iter();
        pods.filter(|pod| is_tracked(pod) && ended(pod) && !self.last.holds(pod)).cloned().collect()
    }

    /// Reports whether every Pod has ended and is counted.
    fn is_idle(&self) -> bool {
        let counted = self.tally.uncounted == UncountedPods::default();
        self.active.is_empty() && self.terminating == 0 && counted && self.caught_up
    }

    /// Plans the next step of a Job that is not over: its end, its suspension, or its Pods.
    fn proceed(&self, draft: &mut Draft) {
        let met = condition(&draft.conditions.list, "SuccessCriteriaMet").cloned();
        let failing = condition(&draft.conditions.list, "FailureTarget").cloned();
        match (met, failing) {
            (Some(c), _) => {
                draft.plan.delete = self.active.clone();
                if self.is_idle()
                    && draft.conditions.set("Complete", "True", reason(&c), message(&c))
                {
                    draft.completion = Some(self.now);
                    draft.plan.event(EventKind::Normal, "Completed", "Job completed");
                }
            }
            (None, Some(c)) => {
                draft.plan.delete = self.active.clone();
                if self.is_idle() {
                    draft.conditions.set("Failed", "True", reason(&c), message(&c));
                    draft.plan.event(EventKind::Warning, failure_event(&c), message(&c));
                }
            }
            (None, None) if self.job.spec.suspend => self.suspend(draft),
            (None, None) => {
                let suspended = condition(&draft.conditions.list, "Suspended");
                if suspended.is_some_and(|c| c.status == "True") {
                    draft.conditions.set("Suspended", "False", "JobResumed", "Job resumed");
                    draft.start = Some(self.now);
                    draft.plan.event(EventKind::Normal, "Resumed", "Job resumed");
                }
                self.manage(&mut draft.plan);
            }
        }
    }

    fn status(&self, draft: &Draft) -> Value {
        let (job, tally, conditions) = (self.job, &self.tally, &draft.conditions.list);
        let ready = self.active.iter().filter(|pod| pod.is_ready()).count() as i64;
        let recorded = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let settled = recorded == tally.uncounted && tally.uncounted == UncountedPods::default();
        let over = job.finished().is_some();
        json!({
            "startTime": draft.start,
            "completionTime": draft.completion,
            "active": count(self.active.len() as i64),
            "ready": ready,
            "terminating": self.terminating,
            "succeeded": count(tally.succeeded.max(0)),
            "failed": count(tally.failed),
            "completedIndexes": if job.is_indexed() && !tally.indexes.is_empty() {
                json!(indexes::format(&tally.indexes))
            } else {
                Value::Null
            },
            "failedIndexes": tally.lost.as_ref().map(indexes::format),
            "uncountedTerminatedPods": if settled && over { json!({}) } else { uncounted(&tally.uncounted) },
            "conditions": if conditions.is_empty() { Value::Null } else { json!(conditions) },
        })
    }

    /// Decides whether the Job has succeeded or failed.
    fn judge(&self, draft: &mut Draft) {
        let (job, tally) = (self.job, &self.tally);
        if ["SuccessCriteriaMet", "FailureTarget"]
            .iter()
            .any(|c| condition(&draft.conditions.list, c).is_some())
        {
            return;
        }
        let (succeeded, failures) = tally.all();
        let completed = match job.spec.completions {
            Some(completions) => succeeded >= completions,
            None => succeeded > 0 && self.active.is_empty(),
        };
        // A container that restarts in place counts as a failed Pod.
        let on_failure = job.spec.template.text("spec.restartPolicy") == "OnFailure";
        let restarts: i64 =
            if on_failure { self.active.iter().map(|pod| pod.restarts()).sum() } else { 0 };
        let limit = job.spec.backoff_limit.unwrap_or(6);
        let late = job
            .spec
            .active_deadline_seconds
            .zip(draft.start)
            .filter(|_| !job.spec.suspend)
            .map(|(seconds, start)| start.unix().saturating_add(seconds) - self.now.unix());
        let mut violations = self.pods.iter().filter(|pod| failed(job, pod)).filter_map(|pod| {
            match meaning(job, pod) {
                FailureEffect::FailsJob(message) => Some(message),
                _ => None,
            }
        });
        if let Some(message) = violations.next() {
            draft.conditions.set("FailureTarget", "True", "PodFailurePolicy", &message);
        } else if failures > limit || (on_failure && restarts > 0 && failures + restarts > limit) {
            let message = "Job has reached the specified backoff limit";
            draft.conditions.set("FailureTarget", "True", "BackoffLimitExceeded", message);
        } else if late.is_some_and(|left| left <= 0) {
            let message = "Job was active longer than specified deadline";
            draft.conditions.set("FailureTarget", "True", "DeadlineExceeded", message);
        } else if let Some((reason, message)) = too_many_lost(job, tally) {
            draft.conditions.set("FailureTarget", "True", reason, message);
        } else if let Some(message) = success::met(job, &tally.indexes) {
            draft.conditions.set("SuccessCriteriaMet", "True", "SuccessPolicy", &message);
        } else if completed {
            let message = "Reached expected number of succeeded pods";
            draft.conditions.set("SuccessCriteriaMet", "True", "CompletionsReached", message);
        } else if let Some(left) = late {
            draft.plan.retry_after = Some(Duration::from_secs(left.unsigned_abs()));
        }
    }

    fn suspend(&self, draft: &mut Draft) {
        draft.plan.delete = self.active.clone();
        if draft.conditions.set("Suspended", "True", "JobSuspended", "Job suspended")
            && self.job.status.start_time.is_some()
        {
            draft.plan.event(EventKind::Normal, "Suspended", "Job suspended");
        }
        draft.start = None;
    }

    /// Plans the Pods to create and delete for the desired parallelism.
    fn manage(&self, plan: &mut Plan) {
        let (job, pods, active) = (self.job, self.pods, &self.active);
        let (tally, last, now) = (&self.tally, &self.last, self.now);
        let parallelism = job.spec.parallelism.unwrap_or(1);
        let (succeeded, _) = tally.all();
        let target = match job.spec.completions {
            Some(completions) => parallelism.min((completions - succeeded).max(0)),
            // A work queue Job starts no Pods after the first success.
            None if succeeded > 0 => parallelism.min(active.len() as i64),
            None => parallelism,
        };
        let have = active.len() as i64;
        if have > target {
            let mut surplus = active.clone();
            removal_order(&mut surplus, |_| 0, now);
            surplus.truncate((have - target) as usize);
            plan.delete = surplus;
            return;
        }
        // A terminating Pod still counts if its replacement must wait for its end.
        let late = pods.iter().filter(|pod| job.replaces_late() && is_ending(pod)).count() as i64;
        let missing = target - have - late;
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
                let new = |index| NewPod {
                    index: Some(index),
                    failures: Some(last.failures(job, index)),
                };
                plan.create = ready.into_iter().map(|(index, _)| new(index)).collect();
                waits.into_iter().filter_map(|(_, wait)| wait).min()
            }
            None => {
                let wait = backoff(job, pods, now);
                plan.create = match (wait, job.is_indexed()) {
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
            plan.retry_after =
                Some(plan.retry_after.map_or(wait, |retry_after| retry_after.min(wait)));
        }
    }
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
    let events =
        ["DeadlineExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded"];
    events.into_iter().find(|event| reason(condition) == *event).unwrap_or("BackoffLimitExceeded")
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

/// Returns the indexes that are neither running nor finished.
fn open_indexes(
    job: &Job,
    pods: &[Arc<Pod>],
    tally: &Tally,
    lost: impl Fn(i64) -> bool,
) -> impl Iterator<Item = i64> {
    let late = job.replaces_late();
    let occupied = |pod: &&Arc<Pod>| pod.is_active() || (late && is_ending(pod));
    let indexes: BTreeSet<i64> =
        pods.iter().filter(occupied).filter_map(|pod| completion_index(pod)).collect();
    (0..job.spec.completions.unwrap_or(0)).filter(move |index| {
        !indexes.contains(index) && !tally.indexes.contains(index) && !lost(*index)
    })
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
