//! Records the date of the last use of a legacy service account token as a label of its Secret.

use auth::authn::legacy_token::{LAST_USED, date};
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::clock;

/// Writes the label of each Secret in the queue, by namespace and name.
pub(crate) fn follow(client: Client, used: &WorkQueue<(String, String)>, tasks: &rt::Tasks) {
    used.run(tasks, "last use of tokens", 1, move |(namespace, name)| {
        let client = client.clone();
        async move {
            let done = write(&client, &namespace, &name).await;
            done.inspect_err(|error| {
                tracing::warn!(namespace, name, %error, "failed to record the last use of a Secret's token; retrying");
            })
            .is_ok()
        }
    });
}

async fn write(client: &Client, namespace: &str, name: &str) -> Result<(), Error> {
    let at = PatchTarget { namespace, name, subresource: "" };
    let patch = json!({"metadata": {"labels": {LAST_USED: date(clock::now())}}});
    let done = client.patch::<Value>(&Resource::SECRETS, at, PatchKind::Merge, &patch).await;
    done.or_none().map(drop)
}
