//! Bootstrap tokens: signs the public cluster-info with each, and removes those that have expired.

use std::sync::Arc;

use api_meta::{ObjectMeta, Timestamp, Tree as _};
use bootstrap_core::{
    discovery::{CLUSTER_INFO, SIGNATURE_PREFIX, sign},
    tokens::{self, Token},
};
use client::{DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource, WorkQueue};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{ConfigMap, Labels},
};

const PUBLIC: &str = "kube-public";
const SYSTEM: &str = "kube-system";

/// A bootstrap token's Secret. Other Secrets are decoded as empty.
#[derive(Clone, Debug, Default, PartialEq)]
struct TokenSecret {
    meta: ObjectMeta,
    token: Option<Token>,
    signs: bool,
    expires: Option<Timestamp>,
}

impl<'de> Deserialize<'de> for TokenSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let secret = Value::deserialize(deserializer)?;
        if secret["type"] != tokens::SECRET_TYPE || *secret.at("metadata.namespace") != SYSTEM {
            return Ok(Self::default());
        }
        let meta = serde_json::from_value(secret["metadata"].clone()).unwrap_or_default();
        let expires = tokens::expiry(&secret);
        let Ok(listed) = tokens::listed(&secret) else {
            return Ok(Self { meta, expires, ..Self::default() });
        };
        Ok(Self {
            meta,
            token: listed.token.parse().ok(),
            signs: listed.usages.iter().any(|usage| usage == "signing"),
            expires,
        })
    }
}

impl TokenSecret {
    fn expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }
}

/// The cluster-info ConfigMap; other ConfigMaps are decoded as empty.
#[derive(Clone, Debug, Default)]
struct ClusterInfo {
    meta: ObjectMeta,
    data: Labels,
}

impl<'de> Deserialize<'de> for ClusterInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = ConfigMap::deserialize(deserializer)?;
        let ours = whole.metadata.namespace == PUBLIC && whole.metadata.name == CLUSTER_INFO;
        Ok(if ours { Self { meta: whole.metadata, data: whole.data } } else { Self::default() })
    }
}

/// Returns the data of cluster-info if it must change: its kubeconfig with one signature for each token.
fn plan_signatures(
    info: &ClusterInfo,
    secrets: &[Arc<TokenSecret>],
    now: Timestamp,
) -> Option<Labels> {
    let kubeconfig = info.data.get("kubeconfig")?;
    let mut desired: Labels = info
        .data
        .iter()
        .filter(|(k, _)| !k.starts_with(SIGNATURE_PREFIX))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    for secret in secrets.iter().filter(|s| s.signs && !s.expired(now) && !s.meta.terminating()) {
        if let Some(token) = &secret.token {
            desired.insert(format!("{SIGNATURE_PREFIX}{}", token.id), sign(kubeconfig, token));
        }
    }
    (desired != info.data).then_some(desired)
}

pub(crate) fn start_signer(context: Context) {
    let queue = WorkQueue::default();
    let secrets = context.watch::<TokenSecret>(Resource::SECRETS);
    let infos = context.watch::<ClusterInfo>(Resource::CONFIG_MAPS);
    let add = queue.clone();
    secrets.on(move |change| {
        if [change.old, change.new].into_iter().flatten().any(|secret| secret.token.is_some()) {
            add.add(CLUSTER_INFO.to_owned());
        }
    });
    let add = queue.clone();
    infos.on(move |change| {
        if change.new.is_some_and(|info| !info.data.is_empty()) {
            add.add(CLUSTER_INFO.to_owned());
        }
    });
    let waits = vec![synced(&secrets), synced(&infos)];
    let state = (context.clone(), secrets, infos);
    context.run(&queue, 1, waits, state, |(context, secrets, infos), _| async move {
        let Some(info) = infos.get(&format!("{PUBLIC}/{CLUSTER_INFO}")) else { return Ok(()) };
        let Some(data) = plan_signatures(&info, &secrets.list(), context.now()) else {
            return Ok(());
        };
        let (client, resource) = (&context.client, &Resource::CONFIG_MAPS);
        let mut map: Value = client.get(resource, PUBLIC, CLUSTER_INFO).await?;
        if *map.at("metadata.resourceVersion") != info.meta.resource_version.as_str() {
            // The informer delivers the newer version.
            return Ok(());
        }
        map.put(&["data"], json!(data));
        client.update::<_, Value>(resource, PUBLIC, CLUSTER_INFO, &map).await.map(drop)
    });
}

pub(crate) fn start_cleaner(context: Context) {
    let queue = WorkQueue::default();
    let secrets = context.watch::<TokenSecret>(Resource::SECRETS);
    secrets.on_key_if(&queue, |change| change.new.is_some_and(|secret| secret.expires.is_some()));
    let waits = vec![synced(&secrets)];
    let state = (context.clone(), secrets, queue.clone());
    context.run(&queue, 1, waits, state, |(context, secrets, queue), key| async move {
        clean(&context, &secrets, &queue, &key).await
    });
}

async fn clean(
    context: &Context,
    secrets: &Watched<TokenSecret>,
    queue: &WorkQueue<String>,
    key: &str,
) -> Result<(), Error> {
    let Some(secret) = secrets.get(key) else { return Ok(()) };
    let Some(end) = secret.expires else { return Ok(()) };
    let now = context.now();
    if end > now {
        queue.add_after(key.to_owned(), end.since(now));
        return Ok(());
    }
    let preconditions = Preconditions {
        uid: Some(secret.meta.uid.clone()),
        resource_version: Some(secret.meta.resource_version.clone()),
    };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    let name = &secret.meta.name;
    context.client.delete(&Resource::SECRETS, SYSTEM, name, &options).await.or_none()?;
    tracing::info!(secret = %name, "removed an expired bootstrap token");
    Ok(())
}

#[cfg(test)]
mod tests {
    use bootstrap_core::discovery::is_signed_by;

    use super::*;

    fn secret(id: &str, expires: Option<&str>) -> Arc<TokenSecret> {
        let token: Token = format!("{id}.0123456789abcdef").parse().unwrap();
        Arc::new(TokenSecret {
            meta: ObjectMeta::default(),
            token: Some(token),
            signs: true,
            expires: expires.map(|text| text.parse().unwrap()),
        })
    }

    #[test]
    fn treats_invalid_expiration_as_expired() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let read = |expiration: Value| -> TokenSecret {
            // The token abcdef.0123456789abcdef, which signs.
            let data = json!({"token-id": "YWJjZGVm", "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==",
                "usage-bootstrap-signing": "dHJ1ZQ==", "expiration": expiration});
            let secret = json!({"type": tokens::SECRET_TYPE, "data": data,
                "metadata": {"name": "bootstrap-token-abcdef", "namespace": SYSTEM}});
            serde_json::from_value(secret).unwrap()
        };
        let data = [("kubeconfig".to_owned(), "k".to_owned())];
        let info = ClusterInfo { meta: ObjectMeta::default(), data: data.into() };
        // "soon", and bytes that are not text.
        for expiration in ["c29vbg==", "//4="] {
            let secret = read(json!(expiration));
            assert!(secret.expired(now) && secret.signs, "{expiration}");
            assert_eq!(plan_signatures(&info, &[Arc::new(secret)], now), None);
        }
        let never = read(Value::Null);
        assert!(never.expires.is_none());
        assert!(plan_signatures(&info, &[Arc::new(never)], now).is_some());
    }

    #[test]
    fn signs_with_every_valid_token() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let data = [
            ("kubeconfig".to_owned(), "k".to_owned()),
            ("jws-kubeconfig-gone00".to_owned(), "x".to_owned()),
        ];
        let mut info = ClusterInfo { meta: ObjectMeta::default(), data: data.into() };
        let secrets = [secret("aaaaaa", None), secret("bbbbbb", Some("2025-01-01T00:00:00Z"))];
        let wanted = plan_signatures(&info, &secrets, now).unwrap();
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["jws-kubeconfig-aaaaaa", "kubeconfig"]);
        let token = secrets[0].token.as_ref().unwrap();
        assert!(is_signed_by(&wanted["jws-kubeconfig-aaaaaa"], "k", token));
        info.data = wanted;
        assert_eq!(plan_signatures(&info, &secrets, now), None);
    }
}
