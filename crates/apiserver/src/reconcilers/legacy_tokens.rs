//! The date of the last use of a service-account token that lives in a Secret, in a label of the Secret.

use auth::authn::legacy_token::{LAST_USED, date};
use client::{Client, Error, IfThere as _, PatchKind, Patched, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::clock;

/// Writes the label of each Secret, by namespace and name, whose token was presented.
pub(crate) fn follow(client: Client, used: &WorkQueue<(String, String)>, tasks: &rt::Tasks) {
    used.run(tasks, "last use of tokens", 1, move |(namespace, name)| {
        let client = client.clone();
        async move {
            let done = write(&client, &namespace, &name).await;
            done.inspect_err(|error| {
                tracing::warn!(namespace, name, %error, "writing when a Secret's token was used; trying again");
            })
            .is_ok()
        }
    });
}

async fn write(client: &Client, namespace: &str, name: &str) -> Result<(), Error> {
    let at = Patched { namespace, name, subresource: "" };
    let patch = json!({"metadata": {"labels": {LAST_USED: date(clock::now())}}});
    let done = client.patch::<Value>(&Resource::SECRETS, at, PatchKind::Merge, &patch).await;
    done.if_there().map(drop)
}
