//! Sets the condition `Dangling` of flow schemas: whether the priority level that they reference exists.

use std::sync::Arc;

use api_meta::{GroupResource, Objects, Tree as _};
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    registry::set_condition,
    watch_cache::{ObservedChange, Observer},
};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const FLOW_SCHEMAS: Resource = Resource::constant(GROUP, "v1", "flowschemas", "FlowSchema", false);

/// Enqueues work for [`follow`] when a flow schema or priority level changes.
pub(crate) fn observer() -> (Observer, WorkQueue<()>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |observed: &ObservedChange<'_>| {
        if *observed.definition.group == *GROUP {
            changes.add(());
        }
    };
    (Box::new(observe), queue)
}

pub(crate) fn follow(
    objects: Arc<dyn Objects>,
    client: Client,
    queue: &WorkQueue<()>,
    tasks: &rt::Tasks,
) {
    queue.run(tasks, "levels of flow schemas", 1, move |()| {
        let (objects, client) = (objects.clone(), client.clone());
        async move {
            let done = reconcile(&*objects, &client).await;
            done.inspect_err(|error| {
                tracing::warn!(%error, "failed to update the Dangling conditions of flow schemas");
            })
            .is_ok()
        }
    });
}

async fn reconcile(objects: &dyn Objects, client: &Client) -> Result<(), Error> {
    let levels = objects.list(&GroupResource::new(GROUP, "prioritylevelconfigurations"), "");
    for schema in objects.list(&GroupResource::new(GROUP, "flowschemas"), "") {
        let wanted = schema.at("spec.priorityLevelConfiguration.name").as_str();
        let wanted = wanted.unwrap_or_default();
        let found = levels.iter().any(|level| *level.at("metadata.name") == wanted);
        let (reason, fact) =
            if found { ("Found", "it exists") } else { ("NotFound", "there is no such object") };
        let joint = if found { "and" } else { "but" };
        let message = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {wanted:?} {joint} {fact}"
        );
        let mut status = schema["status"].clone();
        if !set_condition(&mut status, "Dangling", !found, reason, &message) {
            continue;
        }
        let name = schema.name();
        let at = PatchTarget { namespace: "", name, subresource: "status" };
        let patch = json!({"status": {"conditions": status["conditions"]}});
        let done = client.patch::<Value>(&FLOW_SCHEMAS, at, PatchKind::Merge, &patch).await;
        done.or_none()?;
    }
    Ok(())
}
