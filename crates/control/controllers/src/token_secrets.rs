//! Fills Secrets of type `kubernetes.io/service-account-token` with a token of their service account, and deletes those
//! whose account is gone.

pub(crate) mod cleaner;

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ObjectMeta, Tree as _, null_default};
use auth::authn::{keys::SigningKey, legacy_token};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::{DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource, WorkQueue};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::ServiceAccount,
};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// A Secret that asks for a token. Other Secrets are decoded as empty.
#[derive(Debug, Default)]
struct TokenSecret {
    metadata: ObjectMeta,
    /// The name of the service account; empty for other Secrets.
    account: String,
    /// The uid of the service account; empty if the Secret does not name one.
    account_uid: String,
    has_token: bool,
    has_namespace: bool,
    /// The CA certificate, as base64.
    ca: String,
}

impl<'de> Deserialize<'de> for TokenSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Secret {
            metadata: ObjectMeta,
            r#type: String,
            #[serde(deserialize_with = "null_default")]
            data: BTreeMap<String, String>,
        }
        let mut secret = Secret::deserialize(deserializer)?;
        if secret.r#type != TYPE {
            return Ok(Self::default());
        }
        let annotation =
            |key: &str| secret.metadata.annotations.get(key).cloned().unwrap_or_default();
        let has = |key: &str| secret.data.get(key).is_some_and(|value| !value.is_empty());
        Ok(Self {
            account: annotation(ACCOUNT),
            account_uid: annotation(ACCOUNT_UID),
            has_token: has("token"),
            has_namespace: has("namespace"),
            ca: secret.data.remove("ca.crt").unwrap_or_default(),
            metadata: secret.metadata,
        })
    }
}

impl TokenSecret {
    /// Reports whether an account is the one that the Secret names.
    fn is_of(&self, account: &ObjectMeta) -> bool {
        self.account == account.name
            && (self.account_uid.is_empty() || self.account_uid == account.uid)
    }
}

#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Delete,
    Fill,
}

/// `ca` is the CA certificate that the Secret must have, as base64; empty if there is none.
fn plan(secret: &TokenSecret, account: Option<&ObjectMeta>, ca: &str) -> Plan {
    if secret.account.is_empty() || secret.metadata.terminating() {
        return Plan::Nothing;
    }
    if account.is_none_or(|account| !secret.is_of(account)) {
        return Plan::Delete;
    }
    let has_ca = ca.is_empty() || secret.ca == ca;
    if has_ca && secret.has_token && secret.has_namespace { Plan::Nothing } else { Plan::Fill }
}

struct Controller {
    context: Context,
    secrets: Watched<TokenSecret>,
    accounts: Watched<ServiceAccount>,
    key: SigningKey,
    /// The CA certificate of the API server, as base64.
    ca: String,
}

pub(crate) fn start(context: Context) {
    let Some(key) = context.config.token_key.clone() else {
        tracing::info!("no key signs tokens, so Secrets of service accounts get none");
        return;
    };
    let key = match SigningKey::from_pem(key.as_bytes()) {
        Ok(key) => key,
        Err(error) => {
            tracing::error!(%error, "the key that signs tokens cannot be used; Secrets get none");
            return;
        }
    };
    let queue = WorkQueue::default();
    let secrets = context.watch::<TokenSecret>(Resource::SECRETS);
    let accounts = context.watch::<ServiceAccount>(Resource::SERVICE_ACCOUNTS);
    let changed = queue.clone();
    secrets.on(move |change| match (change.new, change.old) {
        (Some(new), _) if !new.account.is_empty() => changed.add(change.key.to_owned()),
        (None, Some(old)) if !old.account.is_empty() => {
            changed.add(format!("{}/{}", change.key, old.account));
        }
        _ => {}
    });
    let (of_account, waiting) = (secrets.clone(), queue.clone());
    accounts.on(move |change| {
        let uid = |object: Option<&Arc<ServiceAccount>>| object.map(|o| o.metadata.uid.clone());
        let Some(meta) = change.old.or(change.new).map(|object| &object.metadata) else { return };
        if uid(change.old) == uid(change.new) {
            return;
        }
        for secret in of_account.in_namespace(&meta.namespace) {
            if secret.account == meta.name {
                waiting.add(format!("{}/{}", meta.namespace, secret.metadata.name));
            }
        }
    });
    let waits = vec![synced(&secrets), synced(&accounts)];
    let ca = STANDARD.encode(context.config.root_ca.as_deref().unwrap_or_default());
    let controller = Arc::new(Controller { context: context.clone(), secrets, accounts, key, ca });
    context.run(&queue, 1, waits, controller, |controller, key| async move {
        controller.reconcile(&key).await
    });
}

impl Controller {
    /// The key is that of a Secret, which is followed by the name of its account if the Secret was deleted.
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        if let [namespace, secret, account] = *key.split('/').collect::<Vec<_>>() {
            return self.remove_reference(namespace, account, secret).await;
        }
        let Some(secret) = self.secrets.get(key) else { return Ok(()) };
        if secret.account.is_empty() {
            return Ok(());
        }
        let account = self.account(&secret).await?;
        match plan(&secret, account.as_ref().map(|account| &account.metadata), &self.ca) {
            Plan::Nothing => Ok(()),
            Plan::Delete => {
                delete(&self.context, &secret.metadata, "of a service account that is gone").await
            }
            Plan::Fill => match account {
                Some(account) => self.fill(&secret.metadata, &account.metadata).await,
                None => Ok(()),
            },
        }
    }

    /// Returns the Secret's account. The API server is asked before a Secret is deleted, because informers lag.
    async fn account(&self, secret: &TokenSecret) -> Result<Option<Arc<ServiceAccount>>, Error> {
        let (namespace, name) = (&secret.metadata.namespace, &secret.account);
        let known = self.accounts.get(&format!("{namespace}/{name}"));
        if let Some(account) = known.filter(|account| secret.is_of(&account.metadata)) {
            return Ok(Some(account));
        }
        let found = self.context.client.get(&Resource::SERVICE_ACCOUNTS, namespace, name).await;
        Ok(found.or_none()?.map(Arc::new))
    }

    /// Removes a deleted Secret from the list of its account.
    async fn remove_reference(
        &self,
        namespace: &str,
        account: &str,
        secret: &str,
    ) -> Result<(), Error> {
        let client = &self.context.client;
        let is_listed = self
            .accounts
            .get(&format!("{namespace}/{account}"))
            .is_some_and(|account| account.lists(secret));
        if !is_listed || self.secrets.get(&format!("{namespace}/{secret}")).is_some() {
            return Ok(());
        }
        let accounts = &Resource::SERVICE_ACCOUNTS;
        let found = client.get::<Value>(accounts, namespace, account).await.or_none()?;
        let Some(mut found) = found else { return Ok(()) };
        if let Some(listed) = found.at_mut(&["secrets"]).and_then(Value::as_array_mut) {
            listed.retain(|reference| reference.text("name") != secret);
        }
        client.update::<_, Value>(accounts, namespace, account, &found).await.or_none().map(drop)
    }

    /// Adds what the Secret lacks to its present state.
    async fn fill(&self, meta: &ObjectMeta, account: &ObjectMeta) -> Result<(), Error> {
        let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
        let secrets = &Resource::SECRETS;
        let mut secret: Value = self.context.client.get(secrets, namespace, name).await?;
        if *secret.at("metadata.uid") != meta.uid.as_str() || secret["type"] != TYPE {
            return Ok(());
        }
        let lacks = |secret: &Value, field: &str| {
            secret["data"][field].as_str().unwrap_or_default().is_empty()
        };
        if !self.ca.is_empty() {
            secret.put(&["data", "ca.crt"], json!(self.ca));
        }
        if lacks(&secret, "namespace") {
            secret.put(&["data", "namespace"], json!(STANDARD.encode(namespace)));
        }
        if lacks(&secret, "token") {
            match legacy_token::sign(&self.key, namespace, name, &account.name, &account.uid) {
                Ok(token) => secret.put(&["data", "token"], json!(STANDARD.encode(token))),
                Err(error) => {
                    tracing::error!(namespace, name, %error, "could not sign the token of a Secret");
                    return Ok(());
                }
            }
        }
        secret.put(&["metadata", "annotations", ACCOUNT], json!(account.name));
        secret.put(&["metadata", "annotations", ACCOUNT_UID], json!(account.uid));
        self.context.client.update::<_, Value>(secrets, namespace, name, &secret).await.map(drop)
    }
}

/// Deletes a Secret in the state that was seen.
async fn delete(context: &Context, meta: &ObjectMeta, why: &str) -> Result<(), Error> {
    let preconditions = Preconditions {
        uid: Some(meta.uid.clone()),
        resource_version: Some(meta.resource_version.clone()),
    };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    let (namespace, name) = (&meta.namespace, &meta.name);
    tracing::info!(%namespace, %name, "deleting the Secret {why}");
    context.client.delete(&Resource::SECRETS, namespace, name, &options).await.or_none().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(kind: &str, annotations: Value, data: Value) -> TokenSecret {
        let metadata = json!({"name": "s", "namespace": "n", "annotations": annotations});
        serde_json::from_value(json!({"type": kind, "metadata": metadata, "data": data})).unwrap()
    }

    #[test]
    fn plans_by_account_and_content() {
        let account = ObjectMeta { name: "a".into(), uid: "u".into(), ..ObjectMeta::default() };
        let whole = json!({"token": "eA==", "namespace": "bg==", "ca.crt": "Y2E="});
        let (own, other) = (json!({ACCOUNT: "a"}), json!({ACCOUNT: "a", ACCOUNT_UID: "other"}));
        let of = |kind: &str, annotations: &Value, data: &Value| {
            plan(&secret(kind, annotations.clone(), data.clone()), Some(&account), "Y2E=")
        };
        assert_eq!(of(TYPE, &own, &whole), Plan::Nothing);
        assert_eq!(of(TYPE, &own, &Value::Null), Plan::Fill);
        assert_eq!(of(TYPE, &own, &json!({"token": "eA==", "namespace": "bg=="})), Plan::Fill);
        assert_eq!(of(TYPE, &other, &whole), Plan::Delete);
        assert_eq!(of("Opaque", &other, &whole), Plan::Nothing);
        assert_eq!(plan(&secret(TYPE, own, whole), None, "Y2E="), Plan::Delete);
    }
}
