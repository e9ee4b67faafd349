//! The life cycle of a custom kind: served once its names are accepted, removed once its objects are deleted.

use std::{sync::Arc, time::Duration};

use api_meta::{GroupResource, Objects as _, Status, Tree as _, UserInfo};
use api_rules::CLEANUP;
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde_json::{Value, json};

use super::{api_services, custom_names};
use crate::{
    handlers::{
        call::Call,
        delete::{DeleteOptions, Origin, remove},
        state::State,
    },
    registry::{
        custom::{definition, spec_hash},
        holds, set_condition,
    },
    watch_cache::{ObservedChange, Observer, store_status},
};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// The interval at which the remaining objects of a deleted kind are checked, since finalizers take time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Enqueues the names of changed definitions for [`follow`].
pub(crate) fn observer() -> (Observer, WorkQueue<String>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |observed: &ObservedChange<'_>| {
        if observed.definition.is(GROUP, PLURAL) {
            changes.add(observed.event.object.name().to_owned());
        }
    };
    (Box::new(observe), queue)
}

/// Adds, updates and removes custom kinds according to their definitions.
pub(crate) fn follow(
    state: Arc<State>,
    client: Client,
    queue: &WorkQueue<String>,
    tasks: &rt::Tasks,
) {
    let again = queue.clone();
    queue.run(tasks, "custom kinds", 1, move |name| {
        let (state, client, again) = (state.clone(), client.clone(), again.clone());
        async move {
            let done = reconcile(&state, &client, &again, &name).await;
            done.inspect_err(
                |error| tracing::warn!(definition = %name, %error, "failed to reconcile a custom kind; retrying"),
            )
            .is_ok()
        }
    });
}

async fn reconcile(
    state: &State,
    client: &Client,
    queue: &WorkQueue<String>,
    name: &str,
) -> Result<(), Error> {
    let crd: Value = match client.get(&Resource::CUSTOM_RESOURCE_DEFINITIONS, "", name).await {
        Ok(crd) => crd,
        Err(error) if error.is_not_found() => {
            if let Some((plural, group)) = name.split_once('.') {
                state.cache.remove(group, plural).await;
                api_services::follow(&state.cache, &*state.security.objects, client).await?;
                // Another definition may be waiting for the released names.
                others(state, group, name).iter().for_each(|o| queue.add(name_of(o)));
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let group = crd.text("spec.group");
    let others = others(state, group, name);
    let taken: Vec<Value> = others
        .iter()
        .map(|other| other.at("status.acceptedNames").clone())
        .chain(built_in(state, group))
        .collect();
    let names = custom_names::accept(&crd, &taken);
    // An established kind stays established, even if a later change of names conflicts.
    let established = names.conflict.is_none() || holds(&crd["status"], "Established");
    let changed = established && serve(state, &crd, &names.accepted).await;
    // Set `Established` only after the kind is served, so that clients that wait for it can use it at once.
    let status = status(&crd, &names, established);
    if status != crd["status"] {
        let renamed = names.accepted != crd["status"]["acceptedNames"];
        set_status(client, name, &status).await?;
        others.iter().filter(|_| renamed).for_each(|o| queue.add(name_of(o)));
    }
    if changed {
        api_services::follow(&state.cache, &*state.security.objects, client).await?;
    }
    if crd.has("metadata.deletionTimestamp") && !finalize(state, client, &crd, status).await? {
        queue.add_after(name.to_owned(), LOOK_AGAIN);
    }
    Ok(())
}

fn name_of(crd: &Value) -> String {
    crd.name().to_owned()
}

/// Returns the group's other definitions, without their schemas.
fn others(state: &State, group: &str, name: &str) -> Vec<Arc<Value>> {
    let kinds = state.cache.kinds();
    let definitions = kinds.get(GROUP, PLURAL).and_then(|resource| resource.cache.as_ref());
    let Some(definitions) = definitions else { return Vec::new() };
    // The name of a definition is the plural name and the group.
    let is_other = |other: &str| {
        other != name && other.split_once('.').is_some_and(|(_, found)| found == group)
    };
    let all = definitions.list(&definitions.definition.prefix, "");
    let others = all.iter().map(|object| object.name()).filter(|other| is_other(other));
    let resource = GroupResource::new(GROUP, PLURAL);
    others.filter_map(|other| state.security.objects.get(&resource, "", other)).collect()
}

/// Returns the names of the group's built-in kinds, which custom kinds must not use.
fn built_in(state: &State, group: &str) -> Vec<Value> {
    let kinds = state.cache.kinds();
    let built_in = kinds.all.iter().map(|r| &r.definition);
    built_in
        .filter(|d| d.custom.is_none() && *d.group == *group)
        .flat_map(|d| d.served.iter().map(move |s| (d, s)))
        .map(|(d, s)| {
            json!({
                "plural": *d.plural,
                "singular": *s.singular,
                "shortNames": s.short_names,
                "kind": *s.kind,
                "listKind": *s.list_kind,
            })
        })
        .collect()
}

/// Serves the kind under its accepted names. Returns `true` if the kind is new or changed.
async fn serve(state: &State, crd: &Value, accepted: &Value) -> bool {
    let mut shown = crd.clone();
    shown.put(&["spec", "names"], accepted.clone());
    let known = state.cache.kinds();
    let known = known.get(crd.text("spec.group"), accepted.text("plural"));
    let known = known.and_then(|r| r.definition.custom);
    let new = known.is_none_or(|old| old != spec_hash(&shown["spec"]));
    if new {
        let definition = definition(&shown, &state.backends, &state.cel);
        state.cache.add(Arc::new(definition)).await;
    }
    new
}

async fn set_status(client: &Client, name: &str, status: &Value) -> Result<(), Error> {
    let at = PatchTarget { namespace: "", name, subresource: "status" };
    let patch = json!({"status": status});
    client
        .patch::<Value>(&Resource::CUSTOM_RESOURCE_DEFINITIONS, at, PatchKind::Merge, &patch)
        .await
        .map(drop)
}

/// Deletes the kind's objects, then removes the definition's finalizer. Returns `true` if no objects remain.
async fn finalize(
    state: &State,
    client: &Client,
    crd: &Value,
    mut status: Value,
) -> Result<bool, Error> {
    let name = crd.name();
    let finalizers: Vec<&str> = crd.texts("metadata.finalizers").collect();
    if !finalizers.contains(&CLEANUP) {
        return Ok(true);
    }
    let (progress, message) =
        ("InstanceDeletionInProgress", "CustomResource deletion is in progress");
    if set_condition(&mut status, "Terminating", true, progress, message) {
        observe(&mut status, crd);
        set_status(client, name, &status).await?;
    }
    match delete_objects(state, crd).await {
        Ok(0) => {}
        Ok(left) => {
            tracing::debug!(
                definition = name,
                left,
                "objects of a deleted kind wait for their finalizers"
            );
            return Ok(false);
        }
        Err(refused) => {
            let message = format!("could not delete instances: {}", refused.message);
            if set_condition(&mut status, "Terminating", true, "InstanceDeletionFailed", &message) {
                observe(&mut status, crd);
                set_status(client, name, &status).await?;
            }
            return Ok(false);
        }
    }
    let message = "removed all instances";
    if set_condition(&mut status, "Terminating", false, "InstanceDeletionCompleted", message) {
        observe(&mut status, crd);
        set_status(client, name, &status).await?;
    }
    let kept: Vec<&str> = finalizers.into_iter().filter(|f| *f != CLEANUP).collect();
    let at = PatchTarget { namespace: "", name, subresource: "" };
    let patch = json!({"metadata": {"finalizers": kept}});
    let done = client
        .patch::<Value>(&Resource::CUSTOM_RESOURCE_DEFINITIONS, at, PatchKind::Merge, &patch)
        .await;
    done.or_none()?;
    Ok(true)
}

/// Deletes the objects of a kind in its storage version, because it may have no served version. Returns the number of
/// objects that remain.
async fn delete_objects(state: &State, crd: &Value) -> Result<usize, Box<Status>> {
    let (group, names) = (crd.text("spec.group"), crd.at("status.acceptedNames"));
    let Some(resource) = state.cache.kinds().get(group, names.text("plural")).cloned() else {
        return Ok(0);
    };
    let Some(cache) = resource.cache.clone() else { return Ok(0) };
    let prefix = resource.definition.prefix.clone();
    let version = resource.definition.storage;
    let user = Arc::new(UserInfo::new("system:apiserver", &["system:masters"]));
    let call = Call::own(resource, version, "delete", user);
    let options = DeleteOptions::default();
    for object in cache.list(&prefix, "") {
        let namespace = object.key.strip_prefix(&*prefix).and_then(|k| k.split_once('/'));
        let namespace = namespace.map_or("", |(namespace, _)| namespace);
        match remove(state, &call, (namespace, object.name()), &options, Origin::Effect).await {
            Err(status) if !status.is_not_found() => return Err(status),
            _ => {}
        }
    }
    state.cache.wait_for_own_writes().await.map_err(store_status)?;
    Ok(cache.list(&prefix, "").len())
}

fn status(crd: &Value, names: &custom_names::GrantedNames, established: bool) -> Value {
    let spec = &crd["spec"];
    let mut status = if crd["status"].is_object() { crd["status"].clone() } else { json!({}) };
    status.put(&["acceptedNames"], names.accepted.clone());
    let mut stored: Vec<String> = status.texts("storedVersions").map(str::to_owned).collect();
    for version in spec.items("versions") {
        let name = version.text("name").to_owned();
        if version["storage"] == Value::Bool(true) && !stored.contains(&name) {
            stored.push(name);
        }
    }
    status.put(&["storedVersions"], json!(stored));
    let (reason, message) = match &names.conflict {
        None => ("NoConflicts", "no conflicts found".to_owned()),
        Some((reason, message)) => (*reason, message.clone()),
    };
    set_condition(&mut status, "NamesAccepted", names.conflict.is_none(), reason, &message);
    let (reason, message) = if established {
        ("InitialNamesAccepted", "the initial names have been accepted")
    } else {
        ("NotAccepted", "not all names are accepted")
    };
    set_condition(&mut status, "Established", established, reason, message);
    if let Some((approved, reason, message)) = api_rules::api_approval(crd) {
        set_condition(
            &mut status,
            "KubernetesAPIApprovalPolicyConformant",
            approved,
            reason,
            &message,
        );
    }
    observe(&mut status, crd);
    status
}

/// Records the generation of the definition that the status and its conditions describe.
fn observe(status: &mut Value, crd: &Value) {
    let generation = crd.int("metadata.generation");
    status.put(&["observedGeneration"], generation);
    for condition in status.items_mut("conditions") {
        condition.put(&["observedGeneration"], generation);
    }
}
