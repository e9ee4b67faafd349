//! The loop over certificate signing requests, and the writes of their status.

use std::sync::Arc;

use api_meta::Tree as _;
use client::{Error, Resource, WorkQueue};
use serde_json::{Value, json};

use super::request::Csr;
use crate::context::{Context, synced};

/// Starts a loop over the requests that `wants` accepts.
pub(super) fn follow<F, Fut>(context: &Context, selects: fn(&Csr) -> bool, reconcile: F)
where
    F: Fn(Context, Arc<Csr>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let queue = WorkQueue::default();
    let requests = context.watch::<Csr>(Resource::CERTIFICATE_SIGNING_REQUESTS);
    requests.on_key_if(&queue, move |change| change.new.is_some_and(|csr| selects(csr)));
    let waits = vec![synced(&requests)];
    let state = (context.clone(), requests, reconcile);
    context.run(&queue, 2, waits, state, move |(context, requests, reconcile), key| async move {
        match requests.get(&key).filter(|csr| selects(csr)) {
            Some(csr) => reconcile(context, csr).await,
            None => Ok(()),
        }
    });
}

/// A change of a request's status.
pub(super) enum StatusChange<'a> {
    /// Sets the certificate.
    Certificate(String),
    /// Adds a condition that is true.
    Condition {
        /// The type of the condition.
        kind: &'static str,
        reason: &'static str,
        message: &'a str,
    },
}

/// Changes the status of a request through a subresource.
pub(super) async fn change_status(
    context: &Context,
    csr: &Csr,
    subresource: &str,
    change: StatusChange<'_>,
) -> Result<(), Error> {
    let (resource, name) = (&Resource::CERTIFICATE_SIGNING_REQUESTS, csr.metadata.name.as_str());
    let mut fresh: Value = context.client.get(resource, "", name).await?;
    if *fresh.at("metadata.uid") != csr.metadata.uid.as_str() {
        return Ok(());
    }
    match change {
        StatusChange::Certificate(pem) => fresh.put(&["status", "certificate"], json!(pem)),
        StatusChange::Condition { kind, reason, message } => {
            let now = context.now().to_seconds();
            let mut all = fresh.items("status.conditions").to_vec();
            all.push(json!({"type": kind, "status": "True", "reason": reason, "message": message,
                "lastUpdateTime": now, "lastTransitionTime": now}));
            fresh.put(&["status", "conditions"], json!(all));
        }
    }
    context
        .client
        .update_subresource::<_, Value>(resource, "", name, subresource, &fresh)
        .await
        .map(drop)
}
