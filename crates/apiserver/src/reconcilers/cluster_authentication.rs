//! What other components look up in the cluster about its API servers: by whom an extension API server may be called,
//! and since when it is noted which legacy tokens are in use.

use api_meta::Tree as _;
use std::{fs, path::Path, sync::Arc, time::Duration};

use client::{Client, Error, IfThere as _, PatchKind, Patched, Resource, WorkQueue};
use serde_json::{Value, json};

use super::ensure::ensure;
use crate::{
    clock,
    config::Config,
    handlers::state::State,
    watch_cache::{Observed, Observer},
};

const NAMESPACE: &str = "kube-system";
const AUTHENTICATION: &str = "extension-apiserver-authentication";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// How often it is looked whether what is published is still so where nobody has touched it: files change, too.
const AGAIN: Duration = Duration::from_secs(60);

/// Says when [`follow`] has something to look at.
pub(crate) fn observer() -> (Observer, WorkQueue<()>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |observed: &Observed<'_>| {
        let (definition, object) = (observed.definition, &observed.event.object);
        let place = (object.namespace(), object.name());
        if definition.is("", "configmaps") && place == (NAMESPACE, AUTHENTICATION) {
            changes.add(());
        }
    };
    (Box::new(observe), queue)
}

/// Keeps true what is published about whom to believe: whoever loses it can authenticate nobody.
pub(crate) fn follow(state: Arc<State>, client: Client, queue: &WorkQueue<()>, tasks: &rt::Tasks) {
    let again = queue.clone();
    queue.add_after((), AGAIN);
    queue.run(tasks, "published authorities", 1, move |()| {
        let (state, client, again) = (state.clone(), client.clone(), again.clone());
        async move {
            let done = publish(&state.config, &client).await;
            again.add_after((), AGAIN);
            done.inspect_err(|error| {
                tracing::warn!(%error, "publishing by whom extension API servers are called");
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
    let found = client.get::<Value>(maps, NAMESPACE, AUTHENTICATION).await.if_there()?;
    let found = found.unwrap_or_default();
    let data = authentication(config, &found["data"]);
    if found["data"] != data {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": AUTHENTICATION, "namespace": NAMESPACE},
        });
        let at = Patched { namespace: NAMESPACE, name: AUTHENTICATION, subresource: "" };
        let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
        client.patch::<Value>(maps, at, apply, &map).await?;
    }
    Ok(())
}

/// Other API servers of the cluster publish their authorities in the same place, so these are added to what is there.
fn authentication(config: &Config, published: &Value) -> Value {
    let bundle = |key: &str, file: &Path| {
        let own = fs::read_to_string(file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "an authority is not published");
            String::new()
        });
        joined(published[key].as_str().unwrap_or_default(), &own)
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
            // As upstream: who knows nothing of UIDs is not told of them.
            if !names.is_empty() || key != "requestheader-uid-headers" {
                data.put(&[key], json!(names).to_string());
            }
        }
    }
    data
}

/// The certificates of two bundles, each once.
fn joined(published: &str, own: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    let mut all: Vec<&str> = Vec::new();
    for certificate in published.split_inclusive(END).chain(own.split_inclusive(END)) {
        // What stands between certificates is commentary.
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
    use super::joined;

    #[test]
    fn bundles_are_joined_without_doubles() {
        let certificate = |text: &str| {
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let (a, b) = (certificate("a"), certificate("b"));
        assert_eq!(joined("", &a), a);
        assert_eq!(joined(&a, &a), a);
        assert_eq!(joined(&format!("{a}\n{b}"), &format!("# mine\n{b}")), format!("{a}{b}"));
        assert_eq!(joined(&a, ""), a);
    }
}
