//! Checks the servers behind APIServices: sets the condition `Available` and fetches their discovery and OpenAPI.

use std::{sync::Arc, time::Duration};

use api_meta::{GroupResource, Objects};
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    aggregation::{
        Aggregation,
        fetch::{GroupVersionName, fetch},
        services::{GROUP, PLURAL},
        snapshot::GroupServer,
    },
    registry::set_condition,
    watch_cache::{ObservedChange, Observer},
};

pub(super) const API_SERVICES: Resource =
    Resource::constant(GROUP, "v1", PLURAL, "APIService", false);

/// The interval of checks without changes, as upstream.
const AGAIN: Duration = Duration::from_secs(30);
const WORKERS: usize = 5;

/// Enqueues APIServices for [`follow`] when they, their Service or its endpoints change.
pub(crate) fn observer(aggregation: Arc<Aggregation>) -> (Observer, WorkQueue<String>) {
    let queue = WorkQueue::new(Duration::from_millis(5), AGAIN);
    let changes = queue.clone();
    let observe = move |observed: &ObservedChange<'_>| {
        let (definition, object) = (observed.definition, &observed.event.object);
        if definition.is(GROUP, PLURAL) {
            changes.add(object.name().to_owned());
        } else if definition.is("", "services") {
            let names = aggregation.behind(object.namespace(), object.name());
            names.into_iter().for_each(|name| changes.add(name));
        } else if definition.is("discovery.k8s.io", "endpointslices") {
            let labels: Vec<&str> = object.labels.iter().collect();
            let of = labels.chunks_exact(2).find(|label| label[0] == "kubernetes.io/service-name");
            let names = of.map(|label| aggregation.behind(object.namespace(), label[1]));
            names.into_iter().flatten().for_each(|name| changes.add(name));
        }
    };
    (Box::new(observe), queue)
}

pub(crate) fn follow(
    aggregation: Arc<Aggregation>,
    objects: Arc<dyn Objects>,
    client: Client,
    queue: &WorkQueue<String>,
    tasks: &rt::Tasks,
) {
    let again = queue.clone();
    queue.run(tasks, "availability of APIServices", WORKERS, move |name| {
        let (aggregation, objects) = (aggregation.clone(), objects.clone());
        let (client, again) = (client.clone(), again.clone());
        async move {
            match reconcile(&aggregation, &*objects, &client, &name).await {
                Ok(is_remote) => {
                    if is_remote {
                        again.add_after(name, AGAIN);
                    }
                    true
                }
                Err(error) => {
                    tracing::warn!(api_service = %name, %error, "failed to check an APIService; retrying");
                    false
                }
            }
        }
    });
}

/// Checks one APIService. Returns `true` if another server serves it, which must be checked periodically.
async fn reconcile(
    aggregation: &Aggregation,
    objects: &dyn Objects,
    client: &Client,
    name: &str,
) -> Result<bool, Error> {
    let known = aggregation.snapshot();
    let found = objects.get(&GroupResource::new(GROUP, PLURAL), "", name);
    let (Some(service), Some(object)) = (known.service(name), found) else { return Ok(false) };
    let of = GroupVersionName { group: &service.group, version: &service.version };
    let remote = match &service.serves {
        GroupServer::Local => {
            let message = "Local APIServices are always available";
            let condition = Condition { holds: true, reason: "Local", message: message.to_owned() };
            set(aggregation, client, &object, name, &condition).await?;
            return Ok(false);
        }
        GroupServer::BuiltIn => {
            let message = "this server serves the group itself: it is a built-in group";
            let (reason, message) = ("BuiltInGroup", message.to_owned());
            let condition = Condition { holds: false, reason, message };
            set(aggregation, client, &object, name, &condition).await?;
            return Ok(false);
        }
        GroupServer::Remote(remote) => remote,
    };
    let reference = &remote.reference;
    let condition = match reference.missing(objects) {
        Some((reason, message)) => Condition { holds: false, reason, message },
        None => match reference.check(&aggregation.backends, &of.path()).await {
            Ok(()) => {
                let message = "all checks passed".to_owned();
                Condition { holds: true, reason: "Passed", message }
            }
            Err(error) => {
                let message = error.to_string();
                Condition { holds: false, reason: "FailedDiscoveryCheck", message }
            }
        },
    };
    set(aggregation, client, &object, name, &condition).await?;
    let before = known.remote_api(&service.group, &service.version);
    let learned = if condition.holds {
        fetch(reference, &aggregation.backends, of, before.map(|l| &**l)).await
    } else {
        // Keep showing what it served before, marked as stale.
        let mut learned = before.map(|l| (**l).clone()).unwrap_or_default();
        learned.fresh = false;
        learned
    };
    aggregation.learn(name, reference, learned);
    Ok(true)
}

/// The condition `Available` of an APIService.
struct Condition {
    holds: bool,
    reason: &'static str,
    message: String,
}

async fn set(
    aggregation: &Aggregation,
    client: &Client,
    object: &Value,
    name: &str,
    condition: &Condition,
) -> Result<(), Error> {
    let Condition { holds, reason, message } = condition;
    let mut status = object["status"].clone();
    if !set_condition(&mut status, "Available", *holds, reason, message) {
        return Ok(());
    }
    tracing::info!(
        api_service = name,
        available = holds,
        reason,
        message,
        "availability of an APIService changed"
    );
    if !*holds {
        aggregation.record_unavailable(name, reason);
    }
    let at = PatchTarget { namespace: "", name, subresource: "status" };
    let patch = json!({"status": {"conditions": status["conditions"]}});
    client.patch::<Value>(&API_SERVICES, at, PatchKind::Merge, &patch).await.or_none().map(drop)
}
