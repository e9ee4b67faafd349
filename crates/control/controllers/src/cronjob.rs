//! Creates Jobs on a schedule.

use std::{sync::Arc, time::Duration};

use api_meta::{ObjectMeta, Timestamp, Tree as _, Zone, null_default};
use api_rules::cron::Schedule;
use client::{DeleteOptions, Error, NotFoundExt as _, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api_error::namespace_is_terminating,
    context::{Context, synced},
    indexes::OwnerIndex,
    pods::OwnerOf,
    shared::Watched,
    views::Job,
};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CronJob {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    schedule: String,
    time_zone: Option<String>,
    starting_deadline_seconds: Option<i64>,
    concurrency_policy: Option<String>,
    suspend: bool,
    job_template: Value,
    successful_jobs_history_limit: Option<i64>,
    failed_jobs_history_limit: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_default")]
    active: Vec<Value>,
    last_schedule_time: Option<Timestamp>,
    last_successful_time: Option<Timestamp>,
}

/// The actions at `now`, besides the status update.
#[derive(Debug, Default)]
struct Plan {
    /// The scheduled time of the Job to create.
    run: Option<Timestamp>,
    /// Running Jobs that the new Job replaces.
    replace: Vec<Arc<Job>>,
    /// Finished Jobs beyond the history limits.
    forget: Vec<Arc<Job>>,
    next: Option<Timestamp>,
    warnings: Vec<(&'static str, String)>,
}

fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for (well, limit) in [
        (true, cron.spec.successful_jobs_history_limit.unwrap_or(3)),
        (false, cron.spec.failed_jobs_history_limit.unwrap_or(1)),
    ] {
        let mut ended: Vec<_> = jobs
            .iter()
            .filter(|j| j.finished().is_some_and(|f| f.0 == well) && !j.metadata.terminating())
            .collect();
        ended.sort_by_key(|job| (job.status.start_time, job.metadata.name.clone()));
        let surplus = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        plan.forget.extend(ended[..surplus].iter().map(|job| (*job).clone()));
    }
    if cron.metadata.terminating() || cron.spec.suspend {
        return plan;
    }
    let zone = cron.spec.time_zone.as_deref().unwrap_or("UTC");
    let Some(zone) = Zone::named(zone) else {
        let text = format!("invalid timeZone: {zone:?}: unknown time zone {zone}");
        plan.warnings.push(("UnknownTimeZone", text));
        return plan;
    };
    let schedule = match Schedule::parse(&cron.spec.schedule, zone) {
        Ok(schedule) => schedule,
        Err(error) => {
            let text = format!("unparseable schedule: {:?} : {error}", cron.spec.schedule);
            plan.warnings.push(("UnparseableSchedule", text));
            return plan;
        }
    };
    let (due, missed) = latest(cron, &schedule, now);
    plan.next = schedule.next(due.unwrap_or(now).max(now));
    let Some(due) = due else {
        if plan.next.is_none() {
            let schedule = &cron.spec.schedule;
            let text = format!(
                "invalid schedule: {schedule} : time difference between two schedules is less than 1 second"
            );
            plan.warnings.push(("InvalidSchedule", text));
        }
        return plan;
    };
    if missed > 100 {
        let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.warnings.push(("TooManyMissedTimes", text.into()));
    }
    let late = cron
        .spec
        .starting_deadline_seconds
        .is_some_and(|seconds| due.unix().saturating_add(seconds) < now.unix());
    if late {
        let text = format!("Missed scheduled time to start a job: {due}");
        plan.warnings.push(("MissSchedule", text));
        return plan;
    }
    let name = job_name(cron, due);
    if jobs.iter().any(|job| job.metadata.name == name)
        || cron.status.last_schedule_time == Some(due)
    {
        return plan;
    }
    let running: Vec<_> = jobs.iter().filter(|job| job.finished().is_none()).cloned().collect();
    match cron.spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.warnings.push(("JobAlreadyActive", text.into()));
            return plan;
        }
        Some("Replace") => plan.replace = running,
        _ => {}
    }
    plan.run = Some(due);
    plan
}

/// Returns the latest missed schedule time and the number of missed times.
fn latest(cron: &CronJob, schedule: &Schedule, now: Timestamp) -> (Option<Timestamp>, usize) {
    let mut from =
        cron.status.last_schedule_time.or(cron.metadata.creation_timestamp).unwrap_or(now);
    if let Some(seconds) = cron.spec.starting_deadline_seconds {
        from = from.max(Timestamp::from_unix(now.unix() - seconds, 0));
    }
    let (mut due, mut missed) = (None, 0);
    while let Some(next) = schedule.next(from).filter(|next| *next <= now) {
        (due, from) = (Some(next), next);
        missed += 1;
        if missed > 1000 {
            // The clock jumped: continue close to now.
            from = from.max(Timestamp::from_unix(now.unix() - 24 * 3600, 0));
        }
        if missed > 3000 {
            break;
        }
    }
    (due, missed)
}

fn job_name(cron: &CronJob, due: Timestamp) -> String {
    format!("{}-{}", cron.metadata.name, due.unix() / 60)
}

fn job_for(owner: &OwnerOf, cron: &CronJob, due: Timestamp) -> Value {
    let template = &cron.spec.job_template;
    let mut annotations = template.at("metadata.annotations").clone();
    if !annotations.is_object() {
        annotations = json!({});
    }
    annotations.put(&["batch.kubernetes.io/cronjob-scheduled-timestamp"], json!(due));
    let mut job = json!({
        "metadata": {"name": job_name(cron, due), "namespace": cron.metadata.namespace,
            "annotations": annotations, "ownerReferences": [owner.reference()]},
        "spec": template["spec"],
    });
    if template.has("metadata.labels") {
        job.put(&["metadata", "labels"], template.at("metadata.labels").clone());
    }
    job
}

/// Returns the reference to a Job in the status.
fn reference(job: &Job) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.metadata.name,
        "namespace": job.metadata.namespace, "uid": job.metadata.uid,
        "resourceVersion": job.metadata.resource_version})
}

struct Reconciler {
    context: Context,
    crons: Watched<CronJob>,
    jobs: OwnerIndex<Job>,
    queue: WorkQueue<String>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let crons = context.watch::<CronJob>(Resource::CRON_JOBS);
    let jobs = context.watch::<Job>(Resource::JOBS);
    crons.on_key(&queue);
    let add = queue.clone();
    jobs.on(move |change| {
        for job in [change.old, change.new].into_iter().flatten() {
            if let Some(owner) = job.metadata.controller().filter(|owner| owner.kind == "CronJob") {
                add.add(format!("{}/{}", job.metadata.namespace, owner.name));
            }
        }
    });
    let waits = vec![synced(&crons), synced(&jobs)];
    let jobs = OwnerIndex::of(&jobs);
    let own = Arc::new(Reconciler { context: context.clone(), crons, jobs, queue: queue.clone() });
    context.run(&queue, 5, waits, own, |own, key| async move { own.reconcile(&key).await });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(cron) = self.crons.get(key) else { return Ok(()) };
        let owner = OwnerOf::new(Resource::CRON_JOBS, &cron.metadata);
        let jobs = self.jobs.by(&cron.metadata.uid);
        let now = self.context.now();
        let plan = plan(&cron, &jobs, now);
        for (reason, message) in plan.warnings {
            self.context.events.warning(owner.object(), reason, message);
        }
        for job in plan.forget.iter().chain(&plan.replace) {
            self.delete(&owner, job).await?;
        }
        let mut ran = cron.status.last_schedule_time;
        if let Some(due) = plan.run {
            self.create(&owner, &cron, due).await?;
            ran = Some(due);
        }
        let replaced = |job: &&Arc<Job>| {
            plan.replace.iter().any(|other| other.metadata.uid == job.metadata.uid)
        };
        let active = jobs.iter().filter(|job| job.finished().is_none() && !replaced(job));
        let mut active: Vec<Value> = active.map(|job| reference(job)).collect();
        active.extend(self.unseen(&owner, &cron, &jobs).await?);
        self.write_status(&owner, &cron, &jobs, active, ran).await?;
        if let Some(next) = plan.next {
            // Run a little late rather than too early.
            self.queue.add_after(key.to_owned(), next.since(now) + Duration::from_millis(100));
        }
        Ok(())
    }

    async fn create(&self, owner: &OwnerOf, cron: &CronJob, due: Timestamp) -> Result<(), Error> {
        let job = job_for(owner, cron, due);
        let (client, events) = (&self.context.client, &self.context.events);
        let namespace = &cron.metadata.namespace;
        match client.create::<_, Value>(&Resource::JOBS, namespace, &job).await {
            Ok(_) => {
                let skew = self.context.now().since(due).as_secs_f64();
                self.context.metrics.job_creation_skew.observe(skew);
                let message = format!("Created job {}", job_name(cron, due));
                events.normal(owner.object(), "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_already_exists() || namespace_is_terminating(&error) => Ok(()),
            Err(error) => {
                let message = format!("Error creating job: {}", error.server_message());
                events.warning(owner.object(), "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn delete(&self, owner: &OwnerOf, job: &Job) -> Result<(), Error> {
        let options =
            DeleteOptions { propagation_policy: Some("Background"), ..DeleteOptions::default() };
        let (client, meta) = (&self.context.client, &job.metadata);
        let deleted = client.delete(&Resource::JOBS, &meta.namespace, &meta.name, &options).await;
        if deleted.or_none()?.is_some() {
            let message = format!("Deleted job {}", meta.name);
            self.context.events.normal(owner.object(), "SuccessfulDelete", message);
        }
        Ok(())
    }

    /// Returns the references of the status whose Jobs exist but are not in the cache yet. Reports Jobs that do not
    /// exist.
    async fn unseen(
        &self,
        owner: &OwnerOf,
        cron: &CronJob,
        jobs: &[Arc<Job>],
    ) -> Result<Vec<Value>, Error> {
        let mut unseen = Vec::new();
        for job in &cron.status.active {
            if jobs.iter().any(|known| job["uid"] == known.metadata.uid.as_str()) {
                continue;
            }
            let (client, name) = (&self.context.client, job.text("name"));
            let namespace = &cron.metadata.namespace;
            let found = client.get::<Value>(&Resource::JOBS, namespace, name).await.or_none()?;
            if found.is_some_and(|found| found["metadata"]["uid"] == job["uid"]) {
                unseen.push(job.clone());
            } else {
                let message = format!("Active job went missing: {name}");
                self.context.events.normal(owner.object(), "MissingJob", message);
            }
        }
        Ok(unseen)
    }

    async fn write_status(
        &self,
        owner: &OwnerOf,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        active: Vec<Value>,
        ran: Option<Timestamp>,
    ) -> Result<(), Error> {
        let was_active =
            |job: &Job| cron.status.active.iter().any(|a| a["uid"] == job.metadata.uid.as_str());
        for job in jobs.iter().filter(|job| was_active(job)) {
            if let Some((well, _)) = job.finished() {
                let condition = if well { "Complete" } else { "Failed" };
                let message =
                    format!("Saw completed job: {}, condition: {condition}", job.metadata.name);
                self.context.events.normal(owner.object(), "SawCompletedJob", message);
            }
        }
        let succeeded = jobs.iter().filter(|job| job.finished().is_some_and(|f| f.0));
        let succeeded = succeeded
            .filter_map(|job| job.status.completion_time)
            .max()
            .max(cron.status.last_successful_time);
        let uids = |all: &[Value]| all.iter().map(|a| a["uid"].clone()).collect::<Vec<_>>();
        let same = uids(&active) == uids(&cron.status.active)
            && ran == cron.status.last_schedule_time
            && succeeded == cron.status.last_successful_time;
        if same {
            return Ok(());
        }
        let active = if active.is_empty() { Value::Null } else { json!(active) };
        let status =
            json!({"active": active, "lastScheduleTime": ran, "lastSuccessfulTime": succeeded});
        self.context.merge_status(&Resource::CRON_JOBS, &cron.metadata, &Value::Null, status).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(extra: Value) -> CronJob {
        let mut spec = json!({"schedule": "*/10 * * * *"});
        extra.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
        serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:01:00Z"}, "spec": spec}))
            .unwrap()
    }

    fn job(name: &str, finished: Option<&str>) -> Arc<Job> {
        let conditions =
            finished.map(|kind| json!([{"type": kind, "status": "True"}])).unwrap_or(json!([]));
        Arc::new(
            serde_json::from_value(
                json!({"metadata": {"name": name}, "status": {"conditions": conditions}}),
            )
            .unwrap(),
        )
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn runs_latest_missed_time_once() {
        let now = at("2026-01-01T00:31:00Z");
        let made = plan(&cron(json!({})), &[], now);
        assert_eq!(
            (made.run, made.next),
            (Some(at("2026-01-01T00:30:00Z")), Some(at("2026-01-01T00:40:00Z")))
        );
        let name = job_name(&cron(json!({})), at("2026-01-01T00:30:00Z"));
        assert_eq!(plan(&cron(json!({})), &[job(&name, None)], now).run, None);
        assert_eq!(plan(&cron(json!({"suspend": true})), &[], now).run, None);
        assert_eq!(plan(&cron(json!({"startingDeadlineSeconds": 30})), &[], now).run, None);
        let patient = cron(json!({"startingDeadlineSeconds": i64::MAX}));
        assert_eq!(plan(&patient, &[], now).run, made.run);
        assert_eq!(plan(&cron(json!({})), &[], at("2026-01-01T00:05:00Z")).run, None);
    }

    #[test]
    fn warns_about_schedule_without_times() {
        let now = at("2026-01-01T00:31:00Z");
        let reported = |schedule: &str| {
            let plan = plan(&cron(json!({"schedule": schedule})), &[], now);
            plan.warnings.iter().map(|(reason, _)| *reason).collect::<Vec<_>>()
        };
        assert_eq!(reported("59 23 31 2 *"), ["InvalidSchedule"]);
        assert!(reported("59 23 29 2 *").is_empty());
    }

    #[test]
    fn applies_concurrency_policy() {
        let now = at("2026-01-01T00:31:00Z");
        let running = [job("x", None)];
        assert!(plan(&cron(json!({})), &running, now).run.is_some());
        assert!(plan(&cron(json!({"concurrencyPolicy": "Forbid"})), &running, now).run.is_none());
        let replaced = plan(&cron(json!({"concurrencyPolicy": "Replace"})), &running, now);
        assert_eq!((replaced.run.is_some(), replaced.replace.len()), (true, 1));
    }

    #[test]
    fn limits_history() {
        let jobs: Vec<_> = (0..5).map(|i| job(&format!("j{i}"), Some("Complete"))).collect();
        let forgotten =
            plan(&cron(json!({"suspend": true})), &jobs, at("2026-01-01T00:31:00Z")).forget;
        let names: Vec<_> = forgotten.iter().map(|j| j.metadata.name.as_str()).collect();
        assert_eq!(names, ["j0", "j1"]);
    }
}
