//! Rewrites the stored objects of a resource, as a StorageVersionMigration requests it: in the current storage version,
//! and encrypted with the current key.
//!
//! Each object is applied without a change, which makes the API server store it again if its stored form is outdated.
//! The status keeps the resourceVersion at which the migration began. A migration that goes on after a failure skips
//! objects that were written since.

use std::time::Duration;

use api_meta::{ObjectMeta, PartialObject, Tree as _};
use client::{Error, List, ListOptions, PatchKind, PatchTarget, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    discovery,
    shared::Watched,
    views::{Condition, is_true},
};

const MIGRATIONS: Resource = Resource::STORAGE_VERSION_MIGRATIONS;
const WORKERS: usize = 5;
/// The number of objects on one page of a list.
const PAGE: u64 = 500;
/// The time that a new custom kind has to appear in discovery.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Migration {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    resource: GroupResource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct GroupResource {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "api_meta::null_default")]
    conditions: Vec<Condition>,
    resource_version: String,
}

impl Migration {
    fn has_ended(&self) -> bool {
        ["Succeeded", "Failed"].iter().any(|kind| is_true(&self.status.conditions, kind))
    }
}

/// The outcome of a step of a migration, as a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Running,
    Succeeded,
    Failed,
}

impl Outcome {
    fn condition(self) -> (&'static str, &'static str) {
        match self {
            Self::Running => ("Running", "StorageVersionMigrationInProgress"),
            Self::Succeeded => ("Succeeded", "StorageVersionMigrationSucceeded"),
            Self::Failed => ("Failed", "StorageVersionMigrationFailed"),
        }
    }
}

/// Returns the conditions with the one of the outcome. A migration that has ended no longer runs.
fn with_outcome(conditions: &[Value], outcome: Outcome, message: &str, now: &str) -> Vec<Value> {
    let (kind, reason) = outcome.condition();
    let mut all: Vec<Value> = conditions.iter().filter(|c| c["type"] != kind).cloned().collect();
    for condition in all.iter_mut().filter(|c| c["type"] == "Running" && c["status"] == "True") {
        condition.put("status", "False");
        condition.put("lastTransitionTime", now);
    }
    all.push(json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now}));
    all
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let migrations = context.watch::<Migration>(MIGRATIONS);
    migrations.on_key(&queue);
    let waits = vec![synced(&migrations)];
    let state = (context.clone(), migrations, queue.clone());
    context.run(&queue, WORKERS, waits, state, |(context, migrations, queue), key| async move {
        reconcile(&context, &migrations, &queue, &key).await
    });
}

async fn reconcile(
    context: &Context,
    migrations: &Watched<Migration>,
    queue: &WorkQueue<String>,
    name: &str,
) -> Result<(), Error> {
    let Some(migration) = migrations.get(name).filter(|migration| !migration.has_ended()) else {
        return Ok(());
    };
    let meta = &migration.metadata;
    let wanted = &migration.spec.resource;
    let served = discovery::all(&context.client, &["list", "patch"]).await;
    let is_wanted = |r: &&Resource| *r.group == *wanted.group && *r.plural == *wanted.resource;
    let Some(resource) = served.resources.iter().find(is_wanted) else {
        let age = meta.creation_timestamp.map(|created| context.now().since(created));
        if !served.failures.is_empty() || age.is_some_and(|age| age < PATIENCE) {
            queue.add_after(name.to_owned(), RETRY);
            return Ok(());
        }
        let failed = report(context, meta, Outcome::Failed, "resource not found", None).await;
        return failed.map(drop);
    };
    let started = if migration.status.resource_version.is_empty() {
        let first = ListOptions { limit: Some(1), ..ListOptions::default() };
        let list: List<PartialObject> = context.client.list(resource, "", &first).await?;
        list.metadata.resource_version
    } else {
        migration.status.resource_version.clone()
    };
    if !report(context, meta, Outcome::Running, "", Some(&started)).await? {
        return Ok(());
    }
    let reported = match migrate(context, resource, &started).await {
        Ok(()) => report(context, meta, Outcome::Succeeded, "", None).await,
        Err(error) if is_final(&error) => {
            let message = format!("migration encountered unhandled error: {error}");
            report(context, meta, Outcome::Failed, &message, None).await
        }
        Err(error) => Err(error),
    };
    reported.map(drop)
}

/// Reports whether a repeated migration would fail with the same error.
fn is_final(error: &Error) -> bool {
    error.is_forbidden() || error.is_invalid()
}

/// Applies every object that was written before the migration began.
async fn migrate(context: &Context, resource: &Resource, started: &str) -> Result<(), Error> {
    // Without a number, no object is known to be newer.
    let started: u64 = started.parse().unwrap_or(u64::MAX);
    let mut page = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    loop {
        let list: List<PartialObject> = context.client.list(resource, "", &page).await?;
        for PartialObject { metadata } in &list.items {
            if metadata.resource_version.parse::<u64>().is_ok_and(|version| version > started) {
                continue;
            }
            match apply_unchanged(context, resource, metadata).await {
                // The object was written or deleted in between.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                done => done?,
            }
        }
        if list.metadata.r#continue.is_empty() {
            return Ok(());
        }
        page.continue_token = list.metadata.r#continue;
    }
}

/// Applies no field to an object of this uid and resourceVersion.
async fn apply_unchanged(
    context: &Context,
    resource: &Resource,
    meta: &ObjectMeta,
) -> Result<(), Error> {
    let ObjectMeta { namespace, name, uid, resource_version, .. } = meta;
    let object = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": name, "uid": uid, "resourceVersion": resource_version}});
    let at = PatchTarget { namespace, name, subresource: "" };
    let apply = PatchKind::Apply { manager: context.name, force: false };
    context.client.patch::<PartialObject>(resource, at, apply, &object).await.map(drop)
}

/// Writes a condition, and the resourceVersion at which the migration began, into the status. Returns `false` if the
/// migration has ended, which the informer may not show yet.
async fn report(
    context: &Context,
    meta: &ObjectMeta,
    outcome: Outcome,
    message: &str,
    started: Option<&str>,
) -> Result<bool, Error> {
    let current: Value = context.client.get(&MIGRATIONS, "", &meta.name).await?;
    let conditions = current.items("status.conditions");
    let has = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
    if has("Succeeded") || has("Failed") {
        return Ok(false);
    }
    if has(outcome.condition().0) {
        return Ok(true);
    }
    let now = context.now().to_seconds().to_string();
    let mut status = json!({"conditions": with_outcome(conditions, outcome, message, &now)});
    if let Some(started) = started {
        status.put("resourceVersion", started);
    }
    let change = json!({ "status": status });
    context.merge_by_update(&MIGRATIONS, meta, "status", &change).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_migration_no_longer_runs() {
        let running = with_outcome(&[], Outcome::Running, "", "2026-01-01T00:00:00Z");
        assert_eq!(running.len(), 1);
        let done = with_outcome(&running, Outcome::Succeeded, "", "2026-01-01T00:00:01Z");
        let states: Vec<_> =
            done.iter().map(|c| (c["type"].as_str(), c["status"].as_str())).collect();
        assert_eq!(states, [(Some("Running"), Some("False")), (Some("Succeeded"), Some("True"))]);
        let migration = |conditions: &[Value]| -> Migration {
            serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap()
        };
        assert!(migration(&done).has_ended() && !migration(&running).has_ended());
        assert!(
            migration(&with_outcome(&running, Outcome::Failed, "m", "2026-01-01T00:00:01Z"))
                .has_ended()
        );
    }
}
