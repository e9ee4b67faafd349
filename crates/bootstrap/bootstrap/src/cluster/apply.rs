//! Reads and writes objects of the cluster.

use std::time::Duration;

use api_meta::Tree as _;
use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::Value;

use crate::Error;

/// The resources of the kinds that bootstrapping writes.
const RESOURCES: [Resource; 13] = [
    Resource::CLUSTER_ROLES,
    Resource::CLUSTER_ROLE_BINDINGS,
    Resource::CONFIG_MAPS,
    Resource::DAEMON_SETS,
    Resource::DEPLOYMENTS,
    Resource::ENDPOINT_SLICES,
    Resource::NAMESPACES,
    Resource::ROLES,
    Resource::ROLE_BINDINGS,
    Resource::SECRETS,
    Resource::SERVICES,
    Resource::SERVICE_ACCOUNTS,
    Resource::STORAGE_CLASSES,
];

/// Returns the resource of an object's kind; an error for a kind that bootstrapping never writes.
pub fn resource_of(object: &Value) -> Result<&'static Resource, Error> {
    let (version, kind) = api_config::gvk(object);
    static ALL: [Resource; 13] = RESOURCES;
    ALL.iter()
        .find(|r| r.kind == kind && r.api_version() == version)
        .ok_or_else(|| Error::UnknownKind { version: version.to_owned(), kind: kind.to_owned() })
}

/// The time for retries against a server that is starting or overloaded.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Creates the object, or patches an existing one. An object with a resourceVersion only patches that version.
/// Transient errors are retried.
pub async fn apply(client: &Client, object: &Value) -> Result<(), Error> {
    let passing = |error: &Error| {
        let is_outdated = has_version(object) && is_conflict(error);
        !is_outdated && matches!(error, Error::Api { source, .. } if is_transient(source))
    };
    rt::retry(PATIENCE, PAUSE, passing, || apply_once(client, object)).await
}

fn has_version(object: &Value) -> bool {
    !object.text("metadata.resourceVersion").is_empty()
}

/// Returns `true` if an object has changed since it was read.
pub(crate) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Api { source, .. } if source.is_conflict())
}

/// Returns `true` for errors that a retry may resolve, at this server or at another one behind the same address. All
/// writes here are idempotent.
fn is_transient(error: &client::Error) -> bool {
    matches!(error, client::Error::Transport { .. })
        || error.is_conflict()
        || error.is_too_many_requests()
        || error.code().is_some_and(|code| code >= 500)
}

async fn apply_once(client: &Client, object: &Value) -> Result<(), Error> {
    let resource = resource_of(object)?;
    if !has_version(object) && create(client, resource, object).await? {
        return Ok(());
    }
    let at = PatchTarget {
        namespace: object.namespace(),
        name: object.name(),
        ..PatchTarget::default()
    };
    let patched = client.patch::<Value>(resource, at, PatchKind::Merge, object).await;
    patched.map(drop).map_err(failed("update", object))
}

/// Creates the object. Returns `false` if it exists.
async fn create(client: &Client, resource: &Resource, object: &Value) -> Result<bool, Error> {
    let namespace = object.namespace();
    let refused = match client.create::<_, Value>(resource, namespace, object).await {
        Ok(_) => return Ok(true),
        // For an existing Service, the API server reports the taken cluster IP before the taken name.
        Err(e) if e.is_already_exists() || e.is_invalid() => e,
        Err(e) => return Err(failed("create", object)(e)),
    };
    if refused.is_invalid() && get(client, resource, namespace, object.name()).await?.is_none() {
        return Err(failed("create", object)(refused));
    }
    Ok(false)
}

/// Returns a function that names the operation and the object in an error.
fn failed(operation: &'static str, object: &Value) -> impl FnOnce(client::Error) -> Error {
    let (_, kind) = api_config::gvk(object);
    let subject = match object.namespace() {
        "" => format!("{kind} {}", object.name()),
        namespace => format!("{kind} {namespace}/{}", object.name()),
    };
    move |source| Error::Api { operation, subject, source }
}

/// Applies the objects in order and stops at the first error.
pub async fn apply_all(
    client: &Client,
    objects: impl IntoIterator<Item = Value>,
) -> Result<(), Error> {
    for object in objects {
        apply(client, &object).await?;
    }
    Ok(())
}

/// Reads an object; `None` if it does not exist.
pub async fn get(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, Error> {
    match client.get(resource, namespace, name).await {
        Ok(object) => Ok(Some(object)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(source) => Err(Error::Api {
            operation: "read",
            subject: format!("{} {namespace}/{name}", resource.kind),
            source,
        }),
    }
}

/// Reports whether a Node or a Pod is ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    let conditions = object.items("status.conditions");
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}
