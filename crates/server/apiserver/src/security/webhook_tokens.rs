//! Authenticates tokens with a webhook.

use std::{sync::Arc, time::Duration};

use api_meta::UserInfo;
use auth::authn::{Authenticated, DigestCache, TokenError};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{sync::Semaphore, time::Instant};

use super::files::{SecurityError, used};
use crate::{config::TokenWebhookOptions, outbound::reviewer::Reviewer};

/// Upstream's timeout of a call.
const TIME: Duration = Duration::from_secs(30);
/// The number of cached responses. Up to twice as many are kept.
const REMEMBERED: usize = 16_384;
/// The maximum number of concurrent calls.
const ASKED: usize = 512;

pub(super) struct WebhookTokens {
    reviewer: Reviewer,
    version: String,
    /// The audiences of a token if the webhook returns none.
    api_audiences: Vec<String>,
    ttl: Duration,
    remembered: DigestCache<(Instant, Option<Authenticated>)>,
    asked: Semaphore,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: UserInfo,
    audiences: Vec<String>,
    error: String,
}

impl WebhookTokens {
    pub(super) fn new(
        options: &TokenWebhookOptions,
        api_audiences: &[String],
    ) -> Result<Self, SecurityError> {
        let path = &options.kubeconfig;
        Ok(Self {
            reviewer: used("token webhook's kubeconfig", path, Reviewer::new(path))?,
            version: options.version.clone(),
            api_audiences: api_audiences.to_vec(),
            ttl: options.ttl,
            remembered: DigestCache::new(REMEMBERED),
            asked: Semaphore::new(ASKED),
        })
    }

    /// Authenticates a token. Responses are cached, failed calls are not.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, TokenError> {
        // Encoded as JSON, so that different parts cannot form the same key.
        let key = DigestCache::<()>::key(&json!([token, audiences]).to_string());
        let known = self.remembered.get(&key).filter(|known| Instant::now() < known.0);
        if let Some(known) = known {
            return Ok(known.1.clone());
        }
        let Ok(_asked) = self.asked.try_acquire() else {
            return Err(TokenError(
                "too many tokens wait for the authentication webhook".to_owned(),
            ));
        };
        let review = json!({
            "kind": "TokenReview", "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "metadata": {}, "spec": {"token": token, "audiences": audiences}, "status": {"user": {}},
        });
        let answer = self.reviewer.ask(&review, TIME, |_, _| {}).await;
        let answer = answer.map_err(|error| error.words).and_then(|json| self.read(&json));
        let status = answer.map_err(|error| {
            tracing::error!(error, "Failed to make webhook authenticator request");
            TokenError(error)
        })?;
        let found = self.evaluate(status, audiences)?;
        if !self.ttl.is_zero() {
            self.remembered.insert(key, Arc::new((Instant::now() + self.ttl, found.clone())));
        }
        Ok(found)
    }

    fn read(&self, json: &[u8]) -> Result<Status, String> {
        let tree: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|e| format!("couldn't read the answer as a TokenReview: {e}"))?;
        let review = Review::deserialize(api_config::without_nulls(Value::Object(tree)))
            .map_err(|e| format!("couldn't read the answer as a TokenReview: {e}"))?;
        let wanted = format!("authentication.k8s.io/{}", self.version);
        let is = |given: &str, wanted: &str| given.is_empty() || given == wanted;
        if is(&review.kind, "TokenReview") && is(&review.api_version, &wanted) {
            Ok(review.status)
        } else {
            Err(format!(
                "expected a TokenReview of {wanted}, got {} of {}",
                review.kind, review.api_version
            ))
        }
    }

    /// Evaluates a response for the requested audiences.
    fn evaluate(
        &self,
        status: Status,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, TokenError> {
        let given =
            if status.audiences.is_empty() { &self.api_audiences } else { &status.audiences };
        let matched: Vec<String> =
            audiences.iter().filter(|audience| given.contains(audience)).cloned().collect();
        if matched.is_empty() {
            return Ok(None);
        }
        match (status.authenticated, status.error.is_empty()) {
            (true, _) if status.user.name.is_empty() => {
                Err(TokenError("the webhook returned a user without a name".to_owned()))
            }
            (true, _) => Ok(Some(Authenticated { user: status.user, audiences: matched })),
            (false, true) => Ok(None),
            (false, false) => Err(TokenError(status.error)),
        }
    }
}
