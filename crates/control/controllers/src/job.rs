//! Runs Pods until enough of them have succeeded.

mod backoff;
mod failure;
mod indexes;
mod per_index;
mod plan;
mod pods;
mod success;
mod written;

use std::{sync::Arc, time::Duration};

use client::{Error, Index, NotFoundExt as _, Resource, WorkQueue};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    context::{Context, merged, synced},
    expectations::Expectations,
    indexes::{OwnerIndex, Selectors},
    metrics::JobAction,
    pods::{OwnerOf, follow_pods},
    shared::Watched,
    views::{Job, Pod},
};
use pods::{FINALIZER, is_tracked};
use written::WrittenVersions;

struct Reconciler {
    context: Context,
    jobs: Watched<Job>,
    pods: OwnerIndex<Pod>,
    /// Pods that are not counted yet, by the key of their Job.
    uncounted: Index<Pod>,
    queue: WorkQueue<String>,
    expectations: Arc<Expectations>,
    written: WrittenVersions,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::new(Duration::from_millis(50), Duration::from_secs(60));
    let expectations = Arc::new(Expectations::default());
    let jobs = context.watch::<Job>(Resource::JOBS);
    let pods = context.watch::<Pod>(Resource::PODS);
    jobs.on_key(&queue);
    follow_pods(&pods, "Job", &queue, &expectations, Selectors::of(&jobs));
    let waits = vec![synced(&jobs), synced(&pods)];
    let own = Arc::new(Reconciler {
        context: context.clone(),
        jobs,
        pods: OwnerIndex::of(&pods),
        uncounted: pods.index("uncounted", |pod| uncounted_by(pod).into_iter().collect()),
        queue: queue.clone(),
        expectations,
        written: WrittenVersions::default(),
    });
    context.run(&queue, 5, waits, own, |own, key| async move { own.reconcile(&key).await });
}

/// Returns the key of the Job that has yet to count the Pod.
fn uncounted_by(pod: &Pod) -> Option<String> {
    let meta = &pod.metadata;
    let job = meta.controller().filter(|owner| owner.kind == "Job")?;
    is_tracked(pod).then(|| format!("{}/{}", meta.namespace, job.name))
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(job) = self.jobs.get(key) else {
            self.expectations.forget(key);
            self.written.forget(key);
            return self.release_all(key).await;
        };
        // The event of the newer version queues the Job again.
        if self.written.is_stale(key, &job.metadata) {
            return Ok(());
        }
        let foreign = |by: &String| by != "kubernetes.io/job-controller";
        if job.metadata.terminating() || job.spec.managed_by.as_ref().is_some_and(foreign) {
            return Ok(());
        }
        let started = Instant::now();
        let mut action = JobAction::Tracking;
        let result = self.sync(key, &job, &mut action).await;
        let jobs = &self.context.metrics.jobs;
        jobs.synced(&job, action, started.elapsed(), result.is_ok());
        result
    }

    /// Brings a Job and its Pods up to date, and sets the action that this took.
    async fn sync(&self, key: &str, job: &Job, action: &mut JobAction) -> Result<(), Error> {
        let owner = OwnerOf::new(Resource::JOBS, &job.metadata);
        // Before the Pods are read: the event of a Pod that they lack could meet the expectations.
        let met = self.expectations.met(key, &self.queue);
        let all = self.pods.claimable(&job.metadata);
        let pods = self.context.claim(&owner, &job.selector(), &Resource::PODS, all).await?;
        let now = self.context.now();
        let plan = plan::plan(job, &pods, now, met);
        *action = match (met, plan.delete.is_empty(), plan.create.is_empty()) {
            (false, ..) => JobAction::Reconciling,
            (true, _, false) => JobAction::PodsCreated,
            (true, false, true) => JobAction::PodsDeleted,
            (true, true, true) => JobAction::Tracking,
        };
        // Record ended Pods first, then remove finalizers, then count: a crash neither loses nor repeats a Pod.
        self.write_status(key, job, &plan.status).await?;
        for pod in &plan.release {
            self.release(pod).await?;
        }
        for (kind, reason, message) in &plan.events {
            let events = &self.context.events;
            match kind {
                events::EventKind::Normal => events.normal(owner.object(), reason, message.clone()),
                events::EventKind::Warning => {
                    events.warning(owner.object(), reason, message.clone())
                }
            }
        }
        if let Some(after) = plan.retry_after {
            self.queue.add_after(key.to_owned(), after);
        }
        let mut result = Ok(());
        if !plan.delete.is_empty() || !plan.create.is_empty() {
            let uids = plan.delete.iter().map(|pod| pod.metadata.uid.as_str());
            self.expectations.expect(key, plan.create.len(), uids);
            let deleted = self.context.delete_pods(&owner, &plan.delete, &self.expectations).await;
            let pods_to_create: Vec<Value> =
                plan.create.iter().map(|new| plan::pod_for(&owner, job, new)).collect();
            result = deleted
                .and(self.context.create_pods(&owner, &pods_to_create, &self.expectations).await);
        }
        result
    }

    async fn write_status(&self, key: &str, job: &Job, status: &Value) -> Result<(), Error> {
        let current = as_stored(json!(job.status));
        if merged(&current, status) != current {
            let (jobs, change) = (&Resource::JOBS, json!({"status": status}));
            let update = self.context.merge_by_update(jobs, &job.metadata, "status", &change);
            self.written.note(key, &update.await?);
        }
        self.context.metrics.jobs.written(job, status);
        Ok(())
    }

    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let left: Vec<_> = pod.metadata.finalizers.iter().filter(|f| *f != FINALIZER).collect();
        let meta = &pod.metadata;
        let patch = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": left}});
        self.context.merge(&Resource::PODS, meta, patch).await.or_none().map(drop)
    }

    /// Removes the finalizer from the Pods of a deleted Job.
    async fn release_all(&self, key: &str) -> Result<(), Error> {
        for pod in self.uncounted.get(key) {
            self.release(&pod).await?;
        }
        Ok(())
    }
}

/// Removes the fields that the API omits.
fn as_stored(mut value: Value) -> Value {
    let left_out = |name: &str| ["active", "succeeded", "failed"].contains(&name);
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, v| {
            !v.is_null() && *v != json!([]) && !(left_out(name) && *v == json!(0))
        });
    }
    value
}
