//! Deletes PodCertificateRequests after a time in which signers and kubelets have dealt with them.

use std::time::Duration;

use api_meta::{PartialObject, Timestamp};
use client::Resource;

use super::clean::delete;
use crate::{
    context::{Context, synced},
    shared::Watched,
};

const REQUESTS: Resource = Resource::POD_CERTIFICATE_REQUESTS;
const PERIOD: Duration = Duration::from_secs(5 * 60);
/// The age at which a request is deleted, whatever its status.
const AGE: Duration = Duration::from_secs(15 * 60);

pub(crate) fn start(context: Context) {
    let requests = context.watch::<PartialObject>(REQUESTS);
    let run = context.clone();
    context.tasks.keep(context.name, move || clean(run.clone(), requests.clone()));
}

fn is_old(request: &PartialObject, now: Timestamp) -> bool {
    request.metadata.creation_timestamp.is_some_and(|created| now.since(created) >= AGE)
}

async fn clean(context: Context, requests: Watched<PartialObject>) {
    synced(&requests).await;
    loop {
        let now = context.now();
        for request in requests.list().iter().filter(|request| is_old(request, now)) {
            delete(&context, &REQUESTS, &request.metadata).await;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_deleted_at_their_age() {
        let mut request = PartialObject::default();
        let created = Timestamp::from_unix(1_790_000_000, 0);
        assert!(!is_old(&request, created));
        request.metadata.creation_timestamp = Some(created);
        assert!(!is_old(&request, created.plus(AGE - Duration::from_secs(1))));
        assert!(is_old(&request, created.plus(AGE)));
    }
}
