//! Objects that are made once, and left as they are from then on.

use api_meta::Tree as _;
use client::{Client, Error, IfThere as _, Resource};
use serde_json::Value;

/// Creates an object unless it is there.
pub(crate) async fn ensure(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    object: &Value,
) -> Result<(), Error> {
    // Asked first: creating a Service anew would fail for its address, which the old one holds.
    let name = object.name();
    if client.get::<Value>(resource, namespace, name).await.if_there()?.is_some() {
        return Ok(());
    }
    match client.create::<_, Value>(resource, namespace, object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
