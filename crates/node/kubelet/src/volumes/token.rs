//! Service account tokens of volumes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use client::Resource;
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccountTokenProjection};
use pod_core::{Timestamp, after};
use serde_json::json;

use super::{Error, Request};
use crate::objects::ObjectsError;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A cache of the service account tokens of one Pod.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<(String, i64), Token>>);

struct Token {
    text: String,
    renew: Timestamp,
    end: Timestamp,
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, i64), Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time at which the first token must be renewed.
    pub(crate) fn renew(&self) -> Option<Timestamp> {
        self.lock().values().map(|token| token.renew).min()
    }

    /// Returns a valid token. A token is renewed after four fifths of its lifetime, or after a day.
    pub(super) async fn get(
        &self,
        request: &Request<'_>,
        wanted: &ServiceAccountTokenProjection,
    ) -> Result<String, Error> {
        self.get_with_end(request, wanted).await.map(|(token, _)| token)
    }

    /// Returns a valid token and the time at which it expires.
    pub(super) async fn get_with_end(
        &self,
        request: &Request<'_>,
        wanted: &ServiceAccountTokenProjection,
    ) -> Result<(String, Timestamp), Error> {
        let now = request.ctx.now();
        let audience = wanted.audience.clone().unwrap_or_default();
        let seconds = wanted.expiration_seconds.unwrap_or(3600);
        let key = (audience.clone(), seconds);
        if let Some(token) = self.lock().get(&key).filter(|token| token.renew > now) {
            return Ok((token.text.clone(), token.end));
        }
        let name = request.pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
        let name = name.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
        let Some(client) = &request.ctx.client else {
            return Err(ObjectsError::Standalone { kind: "service account token of", name }.into());
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
                    "name": request.pod.metadata.name,
                    "uid": request.pod.metadata.uid,
                },
            },
        });
        let answer: TokenRequest = client
            .create_subresource(
                &Resource::SERVICE_ACCOUNTS,
                request.namespace(),
                &name,
                "token",
                &body,
            )
            .await
            .map_err(ObjectsError::from)?;
        let status = answer.status.unwrap_or_default();
        let end = status.expiration_timestamp.map_or(now, |end| end.0);
        let life = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        let renew = after(now, (life * 4 / 5).min(DAY));
        let text = status.token.unwrap_or_default();
        self.lock().insert(key, Token { text: text.clone(), renew, end });
        Ok((text, end))
    }
}
