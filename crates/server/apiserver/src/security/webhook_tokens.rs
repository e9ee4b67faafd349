//! Authenticates tokens with a webhook.

use std::{sync::Arc, time::Duration};

use api_meta::UserInfo;
use auth::authn::{Authenticated, DigestCache, TokenError};
use client::Proxy;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{sync::Semaphore, time::Instant};

use super::files::{SecurityError, with_file};
use crate::{
    config::TokenWebhookOptions,
    outbound::reviewer::{ReviewError, Reviewer},
};

/// Upstream's timeout of a call.
const TIME: Duration = Duration::from_secs(30);
/// The number of cached responses. Up to twice as many are kept.
const CACHE_SIZE: usize = 16_384;
/// The maximum number of concurrent calls.
const MAX_CALLS: usize = 512;

/// The authentication webhook, with a cache of its responses.
pub(super) struct WebhookTokens {
    reviewer: Reviewer,
    version: String,
    /// The audiences of a token if the webhook returns none.
    api_audiences: Vec<String>,
    ttl: Duration,
    cache: DigestCache<(Instant, Option<Authenticated>)>,
    calls: Semaphore,
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

/// The failure of a review.
#[derive(Debug, thiserror::Error)]
enum TokenReviewError {
    #[error(transparent)]
    Call(#[from] ReviewError),
    #[error("couldn't read the answer as a TokenReview: {0}")]
    Json(#[from] serde_json::Error),
    #[error("expected a TokenReview of {expected}, got {kind} of {version}")]
    Kind { expected: String, kind: String, version: String },
    #[error("too many tokens wait for the authentication webhook")]
    TooManyTokens,
    #[error("the webhook returned a user without a name")]
    NoName,
    /// The webhook's own message.
    #[error("{0}")]
    Refusal(String),
}

impl WebhookTokens {
    pub(super) fn new(
        options: &TokenWebhookOptions,
        proxy: Option<Proxy>,
        api_audiences: &[String],
    ) -> Result<Self, SecurityError> {
        let path = &options.kubeconfig;
        Ok(Self {
            reviewer: with_file("token webhook's kubeconfig", path, Reviewer::new(path, proxy))?,
            version: options.version.clone(),
            api_audiences: api_audiences.to_vec(),
            ttl: options.ttl,
            cache: DigestCache::new(CACHE_SIZE),
            calls: Semaphore::new(MAX_CALLS),
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
        let cached = self.cache.get(&key).filter(|cached| Instant::now() < cached.0);
        if let Some(cached) = cached {
            return Ok(cached.1.clone());
        }
        let Ok(_asked) = self.calls.try_acquire() else {
            return Err(TokenError::Remote(TokenReviewError::TooManyTokens.into()));
        };
        let review = json!({
            "kind": "TokenReview", "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "metadata": {}, "spec": {"token": token, "audiences": audiences}, "status": {"user": {}},
        });
        let status = self.send(&review).await.map_err(|error| {
            tracing::error!(%error, "Failed to make webhook authenticator request");
            TokenError::Remote(error.into())
        })?;
        let found = self.evaluate(status, audiences)?;
        if !self.ttl.is_zero() {
            self.cache.insert(key, Arc::new((Instant::now() + self.ttl, found.clone())));
        }
        Ok(found)
    }

    /// Sends a review and returns the status of the returned one.
    async fn send(&self, review: &Value) -> Result<Status, TokenReviewError> {
        let json = self.reviewer.call(review, TIME, |_, _| {}).await?;
        let tree: Map<String, Value> = serde_json::from_slice(&json)?;
        let review = Review::deserialize(api_config::without_nulls(Value::Object(tree)))?;
        let expected = format!("authentication.k8s.io/{}", self.version);
        let is = |value: &str, expected: &str| value.is_empty() || value == expected;
        if is(&review.kind, "TokenReview") && is(&review.api_version, &expected) {
            return Ok(review.status);
        }
        let Review { kind, api_version: version, .. } = review;
        Err(TokenReviewError::Kind { expected, kind, version })
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
                Err(TokenError::Remote(TokenReviewError::NoName.into()))
            }
            (true, _) => Ok(Some(Authenticated { user: status.user, audiences: matched })),
            (false, true) => Ok(None),
            (false, false) => {
                Err(TokenError::Remote(TokenReviewError::Refusal(status.error).into()))
            }
        }
    }
}
