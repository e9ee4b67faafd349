//! Deletes finished Jobs after their TTL.

use std::time::Duration;

use api_meta::Timestamp;
use client::{DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource, WorkQueue};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::Job,
};

/// Returns the time at which the Job is deleted.
fn plan(job: &Job) -> Option<Timestamp> {
    let seconds = u64::try_from(job.spec.ttl_seconds_after_finished?).ok()?;
    let (_, finished) = job.finished()?;
    (!job.metadata.terminating())
        .then(|| finished.map(|at| at.plus(Duration::from_secs(seconds))))?
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let jobs = context.watch::<Job>(Resource::JOBS);
    jobs.on_key_if(&queue, |change| change.new.is_some_and(|job| plan(job).is_some()));
    let waits = vec![synced(&jobs)];
    let state = (context.clone(), jobs, queue.clone());
    context.run(&queue, 2, waits, state, |(context, jobs, queue), key| async move {
        reconcile(&context, &jobs, &queue, &key).await
    });
}

async fn reconcile(
    context: &Context,
    jobs: &Watched<Job>,
    queue: &WorkQueue<String>,
    key: &str,
) -> Result<(), Error> {
    let Some(job) = jobs.get(key) else { return Ok(()) };
    let Some(end) = plan(&job) else { return Ok(()) };
    let now = context.now();
    if end > now {
        queue.add_after(key.to_owned(), end.since(now));
        return Ok(());
    }
    let meta = &job.metadata;
    let options = DeleteOptions {
        propagation_policy: Some("Foreground"),
        // The TTL may have just been changed.
        preconditions: Some(Preconditions {
            uid: Some(meta.uid.clone()),
            resource_version: Some(meta.resource_version.clone()),
        }),
        ..DeleteOptions::default()
    };
    let deleted =
        context.client.delete(&Resource::JOBS, &meta.namespace, &meta.name, &options).await;
    deleted.or_none().map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ttl_starts_when_job_ends() {
        let job = |conditions: serde_json::Value| -> Job {
            serde_json::from_value(json!({"spec": {"ttlSecondsAfterFinished": 10}, "status": {"conditions": conditions}}))
                .unwrap()
        };
        let at = "2026-01-01T00:00:00Z";
        let done = json!([{"type": "Complete", "status": "True", "lastTransitionTime": at}]);
        assert_eq!(plan(&job(done)).unwrap().to_string(), "2026-01-01T00:00:10Z");
        assert_eq!(plan(&job(json!([]))), None);
    }
}
