//! Publishes facts about the API servers in ConfigMaps: the authorities and headers that extension API servers need to
//! authenticate requests, and the date since which the use of legacy tokens is tracked.

use std::{fs, path::Path, sync::Arc, time::Duration};

use api_meta::Tree as _;
use auth::authn::legacy_token::TRACKING;
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde_json::{Value, json};

use super::ensure::ensure;
use crate::{
    clock,
    config::Config,
    handlers::state::State,
    watch_cache::{ObservedChange, Observer},
};

const NAMESPACE: &str = "kube-system";
const AUTHENTICATION: &str = "extension-apiserver-authentication";

/// The interval of checks without a change of the ConfigMap, because the files may change.
const AGAIN: Duration = Duration::from_secs(60);

/// Enqueues work for [`follow`] when the ConfigMap changes.
pub(crate) fn observer() -> (Observer, WorkQueue<()>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |observed: &ObservedChange<'_>| {
        let (definition, object) = (observed.definition, &observed.event.object);
        let place = (object.namespace(), object.name());
        if definition.is("", "configmaps") && place == (NAMESPACE, AUTHENTICATION) {
            changes.add(());
        }
    };
    (Box::new(observe), queue)
}

/// Restores the published authorities whenever they change. Extension API servers cannot authenticate without them.
pub(crate) fn follow(state: Arc<State>, client: Client, queue: &WorkQueue<()>, tasks: &rt::Tasks) {
    let again = queue.clone();
    queue.add_after((), AGAIN);
    queue.run(tasks, "published authorities", 1, move |()| {
        let (state, client, again) = (state.clone(), client.clone(), again.clone());
        async move {
            let done = publish(&state.config, &client).await;
            again.add_after((), AGAIN);
            done.inspect_err(|error| {
                tracing::warn!(%error, "failed to publish the authorities for extension API servers; retrying");
            })
            .is_ok()
        }
    });
}

pub(crate) async fn run(config: &Config, client: &Client) -> Result<(), Error> {
    publish(config, client).await?;
    let today = clock::now().to_string();
    let since = today.split('T').next().unwrap_or_default();
    let tracking = json!({"metadata": {"name": TRACKING}, "data": {"since": since}});
    ensure(client, &Resource::CONFIG_MAPS, NAMESPACE, &tracking).await
}

async fn publish(config: &Config, client: &Client) -> Result<(), Error> {
    let maps = &Resource::CONFIG_MAPS;
    let found = client.get::<Value>(maps, NAMESPACE, AUTHENTICATION).await.or_none()?;
    let found = found.unwrap_or_default();
    let data = authentication(config, &found["data"]);
    if found["data"] != data {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": AUTHENTICATION, "namespace": NAMESPACE},
        });
        let at = PatchTarget { namespace: NAMESPACE, name: AUTHENTICATION, subresource: "" };
        let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
        client.patch::<Value>(maps, at, apply, &map).await?;
    }
    Ok(())
}

/// Merges this server's authorities into the published ones, because the cluster's other API servers publish theirs
/// there, too.
fn authentication(config: &Config, published: &Value) -> Value {
    let bundle = |key: &str, file: &Path| {
        let own = fs::read_to_string(file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "failed to read an authority; it is not published");
            String::new()
        });
        merge_bundles(published[key].as_str().unwrap_or_default(), &own)
    };
    let mut data = json!({});
    if let Some(ca) = &config.client_ca {
        data.put(&["client-ca-file"], bundle("client-ca-file", ca));
    }
    if let Some(proxy) = &config.front_proxy {
        data.put(
            &["requestheader-client-ca-file"],
            bundle("requestheader-client-ca-file", &proxy.ca),
        );
        for (key, names) in [
            ("requestheader-allowed-names", &proxy.allowed_names),
            ("requestheader-username-headers", &proxy.username_headers),
            ("requestheader-uid-headers", &proxy.uid_headers),
            ("requestheader-group-headers", &proxy.group_headers),
            ("requestheader-extra-headers-prefix", &proxy.extra_prefixes),
        ] {
            // As upstream: the key is omitted if no UID headers are configured.
            if !names.is_empty() || key != "requestheader-uid-headers" {
                data.put(&[key], json!(names).to_string());
            }
        }
    }
    data
}

/// Merges two bundles of certificates without duplicates.
fn merge_bundles(published: &str, own: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    let mut all: Vec<&str> = Vec::new();
    for certificate in published.split_inclusive(END).chain(own.split_inclusive(END)) {
        // Text between certificates is commentary.
        let begin = certificate.find("-----BEGIN CERTIFICATE-----");
        let certificate = begin.and_then(|begin| certificate.get(begin..)).unwrap_or_default();
        if certificate.ends_with(END) && !all.contains(&certificate) {
            all.push(certificate);
        }
    }
    all.iter().map(|certificate| format!("{certificate}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::merge_bundles;

    #[test]
    fn joins_bundles_without_duplicates() {
        let certificate = |text: &str| {
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let (a, b) = (certificate("a"), certificate("b"));
        assert_eq!(merge_bundles("", &a), a);
        assert_eq!(merge_bundles(&a, &a), a);
        assert_eq!(merge_bundles(&format!("{a}\n{b}"), &format!("# mine\n{b}")), format!("{a}{b}"));
        assert_eq!(merge_bundles(&a, ""), a);
    }
}
