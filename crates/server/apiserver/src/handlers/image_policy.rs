//! Calls the webhook of ImagePolicyWebhook for Pods. `admission::image_policy` builds the review and judges the
//! response.

use std::{error::Error, sync::Arc, time::Duration};

use admission::{
    Outcome, Request,
    image_policy::{self, AnswerError, Settings, Verdict},
};
use api_meta::Status;
use auth::authn::DigestCache;
use serde_json::Value;
use tokio::time::Instant;

use super::call::Call;
use crate::outbound::reviewer::{ReviewError, Reviewer};

/// The number of cached responses, as upstream. Up to twice as many are kept.
const CACHE_SIZE: usize = 1024;
/// The timeout of one call.
const TIME: Duration = Duration::from_secs(30);

/// The client of the image policy backend, with a cache of verdicts.
pub(crate) struct ImagePolicy {
    settings: Settings,
    reviewer: Reviewer,
    cache: DigestCache<(Instant, Verdict)>,
}

/// The reason why the backend has no verdict.
#[derive(Debug, thiserror::Error)]
enum BackendError {
    #[error("context deadline exceeded")]
    Deadline,
    #[error(transparent)]
    Call(#[from] ReviewError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl ImagePolicy {
    /// Parses the plugin's part of the admission configuration.
    pub(crate) fn new(configuration: &Value) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let settings = Settings::read(configuration)?;
        let reviewer = Reviewer::new(&settings.kubeconfig, None)?.waiting(settings.retry);
        Ok(Self { settings, reviewer, cache: DigestCache::new(CACHE_SIZE) })
    }

    /// Rejects a Pod whose images the webhook denies.
    pub(crate) async fn validate(
        &self,
        call: &Call,
        request: &Request<'_>,
        pod: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Some(spec) = image_policy::review_spec(request, pod) else { return Ok(()) };
        let began = Instant::now();
        let verdict = self.verdict(&spec, call.deadline).await;
        call.waited.add(began.elapsed());
        match verdict {
            Ok(verdict) => {
                let settled = verdict.settle(outcome);
                settled.map_err(|denial| Box::new(request.forbidden(pod, denial)))
            }
            Err(error) => {
                tracing::warn!(%error, "error contacting webhook backend");
                if !self.settings.default_allow {
                    return Err(Box::new(request.forbidden(pod, error)));
                }
                image_policy::record_fail_open(outcome);
                Ok(())
            }
        }
    }

    async fn verdict(
        &self,
        spec: &Value,
        deadline: Option<Instant>,
    ) -> Result<Verdict, BackendError> {
        let key = DigestCache::<()>::key(&spec.to_string());
        let known = self.cache.get(&key).filter(|known| Instant::now() < known.0);
        if let Some(known) = known {
            return Ok(known.1.clone());
        }
        let review = image_policy::review(spec);
        let response = self.reviewer.call(&review, TIME, |_, _| {});
        let response = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, response)
                .await
                .map_err(|_| BackendError::Deadline)?,
            None => response.await,
        };
        let verdict = Verdict::read(&response?)?;
        let (allowed, denied) = self.settings.cache_ttl;
        let ttl = if verdict.allowed { allowed } else { denied };
        if !ttl.is_zero() {
            self.cache.insert(key, Arc::new((Instant::now() + ttl, verdict.clone())));
        }
        Ok(verdict)
    }
}
