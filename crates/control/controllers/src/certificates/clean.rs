//! Deletes requests that are no longer needed.

use std::time::{Duration, SystemTime};

use api_meta::{ObjectMeta, Timestamp};
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{DeleteOptions, NotFoundExt as _, Preconditions, Resource};
use pki::Cert;

use super::request::Csr;
use crate::{
    context::{Context, synced},
    shared::Watched,
    views::condition,
};

const PERIOD: Duration = Duration::from_secs(10 * 60);
const SETTLED: u64 = 3600;
const PENDING: u64 = 24 * 3600;

/// Reports whether the request is old enough to be deleted.
pub(super) fn plan(csr: &Csr, now: Timestamp) -> bool {
    let older = |at: Option<Timestamp>, seconds: u64| {
        at.is_some_and(|at| now.since(at) > Duration::from_secs(seconds))
    };
    let since = |kind| {
        condition(&csr.status.conditions, kind)
            .and_then(|c| c.last_update_time.or(c.last_transition_time))
    };
    let created = csr.metadata.creation_timestamp;
    let pending = !csr.has("Approved") && !csr.has("Denied") && !csr.has("Failed");
    (pending && older(created, PENDING))
        || older(since("Denied"), SETTLED)
        || older(since("Failed"), SETTLED)
        || (csr.status.certificate.is_some() && older(since("Approved"), SETTLED))
        || (csr.status.certificate.is_none() && older(since("Approved"), PENDING))
        || is_expired(csr, now)
}

fn is_expired(csr: &Csr, now: Timestamp) -> bool {
    let pem = csr.status.certificate.as_ref().and_then(|text| STANDARD.decode(text).ok());
    let certificate = pem.and_then(|pem| Cert::from_pem(&String::from_utf8(pem).ok()?).ok());
    let end = certificate.and_then(|certificate| Some(certificate.info().ok()?.not_after));
    end.is_some_and(|end| end < SystemTime::from(now))
}

pub(crate) fn start(context: Context) {
    let requests = context.watch::<Csr>(Resource::CERTIFICATE_SIGNING_REQUESTS);
    let run = context.clone();
    context.tasks.keep(context.name, move || clean(run.clone(), requests.clone()));
}

async fn clean(context: Context, requests: Watched<Csr>) {
    synced(&requests).await;
    loop {
        for csr in requests.list().iter().filter(|csr| plan(csr, context.now())) {
            delete(&context, &Resource::CERTIFICATE_SIGNING_REQUESTS, &csr.metadata).await;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Deletes an old request. Logs a failure, because the next round tries again.
pub(crate) async fn delete(context: &Context, resource: &Resource, meta: &ObjectMeta) {
    let preconditions = Preconditions { uid: Some(meta.uid.clone()), resource_version: None };
    let options = DeleteOptions { preconditions: Some(preconditions), ..Default::default() };
    let (namespace, name) = (&meta.namespace, &meta.name);
    let deleted = context.client.delete(resource, namespace, name, &options).await;
    if let Err(error) = deleted.or_none() {
        let kind = &resource.kind;
        tracing::warn!(%kind, namespace, name, %error, "an old request is not deleted");
    }
}
