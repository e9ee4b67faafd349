//! Creates objects that are not updated afterwards.

use api_meta::Tree as _;
use client::{Client, Error, NotFoundExt as _, Resource};
use serde_json::Value;

/// Creates an object unless it exists.
pub(crate) async fn ensure(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    object: &Value,
) -> Result<(), Error> {
    // Get first: a create of an existing Service fails because its cluster IP is allocated.
    let name = object.name();
    if client.get::<Value>(resource, namespace, name).await.or_none()?.is_some() {
        return Ok(());
    }
    match client.create::<_, Value>(resource, namespace, object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
