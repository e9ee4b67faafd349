//! Authorizes requests with a webhook.

use std::{path::Path, sync::Arc, time::Duration};

use api_config::authorization::WebhookConfiguration;
use api_meta::{Attributes, Decision};
use auth::{
    authn::DigestCache,
    authz::{
        validation,
        webhook::{self, Answer, Conditions},
    },
};
use client::Proxy;
use serde_json::Value;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    time::Instant,
};

use super::{authorization_error::AuthorizationError, metrics::SecurityMetrics};
use crate::outbound::reviewer::Reviewer;

/// The number of cached responses. Up to twice as many are kept.
const CACHE_SIZE: usize = 8192;
/// The maximum number of threads that wait for the webhook. Each blocks a thread of the runtime, which starts a
/// replacement.
const MAX_WAITERS: usize = 64;

/// An authorization webhook, with a cache of its responses.
pub(super) struct WebhookAuthorizer {
    name: String,
    version: String,
    conditions: Conditions,
    reviewer: Reviewer,
    timeout: Duration,
    /// `true` if a request is denied when the call fails.
    denies: bool,
    /// The time that allowing and other responses are cached.
    ttl: (Duration, Duration),
    cache: DigestCache<(Instant, Answer)>,
    waiters: Semaphore,
    metrics: Arc<SecurityMetrics>,
}

impl WebhookAuthorizer {
    /// Creates the authorizer from a validated configuration.
    pub(super) fn new(
        name: &str,
        config: &WebhookConfiguration,
        proxy: Option<Proxy>,
        metrics: &Arc<SecurityMetrics>,
    ) -> Result<Self, AuthorizationError> {
        let kubeconfig = config.connection_info.kube_config_file.as_deref().unwrap_or_default();
        let reviewer = Reviewer::new(Path::new(kubeconfig), proxy)?;
        let conditions = validation::conditions(config, &"".into());
        let lifetime = |remember, ttl: api_config::GoDuration| {
            if remember { ttl.to_std() } else { Duration::ZERO }
        };
        Ok(Self {
            name: name.to_owned(),
            version: config.subject_access_review_version.clone(),
            conditions: conditions.map_err(AuthorizationError::Invalid)?,
            reviewer,
            timeout: config.timeout.to_std(),
            denies: config.failure_policy == "Deny",
            ttl: (
                lifetime(config.cache_authorized_requests, config.authorized_ttl),
                lifetime(config.cache_unauthorized_requests, config.unauthorized_ttl),
            ),
            cache: DigestCache::new(CACHE_SIZE),
            waiters: Semaphore::new(MAX_WAITERS),
            metrics: metrics.clone(),
        })
    }

    fn failed(&self, error: impl Into<Arc<str>>) -> Decision {
        Decision::Failed { denied: self.denies, reason: None, error: error.into() }
    }

    /// Returns the decision if it needs no call, otherwise the review's spec.
    fn decide_locally(&self, request: &Attributes<'_>) -> Result<Decision, Value> {
        let spec = webhook::spec(request);
        if !self.conditions.is_empty() {
            let began = Instant::now();
            let held = self.conditions.hold(&spec);
            self.metrics.record_conditions(&self.name, &held, began.elapsed());
            match held {
                Ok(true) => {}
                Ok(false) => return Ok(Decision::NoOpinion(None)),
                Err(error) => return Ok(self.failed(error.to_string())),
            }
        }
        let cached = self.cache.get(&DigestCache::<()>::key(&spec.to_string()));
        match cached.filter(|cached| Instant::now() < cached.0) {
            Some(cached) => Ok(cached.1.decision()),
            None => Err(spec),
        }
    }

    /// Decides without blocking a thread.
    pub(super) async fn decide(&self, request: &Attributes<'_>) -> Decision {
        match self.decide_locally(request) {
            Ok(decision) => decision,
            Err(spec) => self.call(request, &spec).await,
        }
    }

    /// Decides while blocking the thread, for synchronous checks by an expression or a plugin in the middle of a
    /// request.
    pub(super) fn decide_now(&self, request: &Attributes<'_>) -> Decision {
        let spec = match self.decide_locally(request) {
            Ok(decision) => return decision,
            Err(spec) => spec,
        };
        let Ok(_waiting) = self.waiters.try_acquire() else {
            return self.failed("too many requests wait for the authorization webhook");
        };
        match Handle::try_current() {
            Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
                tokio::task::block_in_place(|| handle.block_on(self.call(request, &spec)))
            }
            _ => self.failed("the authorization webhook cannot be called in this context"),
        }
    }

    async fn call(&self, request: &Attributes<'_>, spec: &Value) -> Decision {
        let review = webhook::review(&self.version, spec);
        let result = |timed_out| if timed_out { "timeout" } else { "error" };
        let answer = self.reviewer.call(&review, self.timeout, |error, took| {
            let result = error.map_or("success", |error| result(error.timed_out));
            self.metrics.record_webhook_call(&self.name, result, took);
        });
        let read = match answer.await {
            Ok(bytes) => {
                Answer::read(&self.version, &bytes).map_err(|error| (error.to_string(), false))
            }
            Err(error) => Err((error.words, error.timed_out)),
        };
        let answer = match read {
            Ok(answer) => answer,
            Err((words, timed_out)) => {
                tracing::error!(
                    webhook = self.name,
                    error = words,
                    "Failed to make webhook authorizer request"
                );
                if !self.denies {
                    self.metrics.record_fail_open(&self.name, result(timed_out));
                }
                return self.failed(words);
            }
        };
        let ttl = if answer.allowed { self.ttl.0 } else { self.ttl.1 };
        let decision = answer.decision();
        if !ttl.is_zero() && webhook::may_remember(request) {
            let key = DigestCache::<()>::key(&spec.to_string());
            self.cache.insert(key, Arc::new((Instant::now() + ttl, answer)));
        }
        decision
    }
}
