//! Service account tokens of volumes.

use std::{collections::BTreeMap, time::Duration};

use client::Resource;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Pod, ServiceAccountTokenProjection},
};
use kubelet_objects::{Objects, ObjectsError};
use parking_lot::{Mutex, MutexGuard};
use pod_core::{Timestamp, after};
use serde_json::json;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the name of a Pod's service account.
pub(crate) fn account_name(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or("default")
}

/// A cache of the service account tokens of one Pod.
#[derive(Default)]
pub struct Tokens(Mutex<BTreeMap<(String, i64), Token>>);

struct Token {
    text: String,
    renew: Timestamp,
    end: Timestamp,
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, i64), Token>> {
        self.0.lock()
    }

    /// Returns the time at which the first token must be renewed.
    pub fn renew(&self) -> Option<Timestamp> {
        self.lock().values().map(|token| token.renew).min()
    }

    /// Returns a valid token of the Pod and the time at which it expires. A token is renewed after four fifths of its
    /// lifetime, or after a day.
    pub async fn get(
        &self,
        objects: &Objects,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<(String, Timestamp), ObjectsError> {
        let audience = projection.audience.clone().unwrap_or_default();
        let seconds = projection.expiration_seconds.unwrap_or(3600);
        let key = (audience.clone(), seconds);
        if let Some(token) = self.lock().get(&key).filter(|token| token.renew > now) {
            return Ok((token.text.clone(), token.end));
        }
        let name = account_name(pod);
        let Some(client) = objects.client() else {
            let name = name.to_owned();
            return Err(ObjectsError::Standalone { kind: "service account token of", name });
        };
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": if audience.is_empty() { json!([]) } else { json!([audience]) },
                "expirationSeconds": seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.metadata.name,
                    "uid": pod.metadata.uid,
                },
            },
        });
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let accounts = &Resource::SERVICE_ACCOUNTS;
        let response: TokenRequest =
            client.create_subresource(accounts, namespace, name, "token", &body).await?;
        let status = response.status.unwrap_or_default();
        let end = status.expiration_timestamp.map_or(now, |end| end.0);
        let life = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        let renew = after(now, (life * 4 / 5).min(DAY));
        let text = status.token.unwrap_or_default();
        self.lock().insert(key, Token { text: text.clone(), renew, end });
        Ok((text, end))
    }
}
