//! Calls the webhook of ImagePolicyWebhook for Pods. `admission::image_policy` builds the review and judges the
//! response.

use std::{sync::Arc, time::Duration};

use admission::{
    Outcome, Request,
    image_policy::{self, Settings, Verdict},
};
use api_meta::Status;
use auth::authn::DigestCache;
use serde_json::Value;
use tokio::time::Instant;

use super::call::Call;
use crate::outbound::reviewer::Reviewer;

/// The number of cached responses, as upstream. Up to twice as many are kept.
const REMEMBERED: usize = 1024;
/// The timeout of one call.
const TIME: Duration = Duration::from_secs(30);

pub(crate) struct ImagePolicy {
    settings: Settings,
    reviewer: Reviewer,
    remembered: DigestCache<(Instant, Verdict)>,
}

impl ImagePolicy {
    /// Parses the plugin's part of the admission configuration.
    pub(crate) fn new(configuration: &Value) -> Result<Self, String> {
        let settings = Settings::read(configuration)?;
        let reviewer = Reviewer::new(&settings.kubeconfig).map_err(|error| error.to_string())?;
        let reviewer = reviewer.waiting(settings.retry);
        Ok(Self { settings, reviewer, remembered: DigestCache::new(REMEMBERED) })
    }

    /// Rejects a Pod whose images the webhook denies.
    pub(crate) async fn validate(
        &self,
        call: &Call,
        request: &Request<'_>,
        pod: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Some(spec) = image_policy::question(request, pod) else { return Ok(()) };
        let asked = Instant::now();
        let verdict = self.verdict(&spec, call.deadline).await;
        call.waited.add(asked.elapsed());
        let settled = match verdict {
            Ok(verdict) => verdict.settle(outcome),
            Err(error) => {
                tracing::warn!(error, "error contacting webhook backend");
                if self.settings.default_allow {
                    image_policy::failed_open(outcome);
                    Ok(())
                } else {
                    Err(error)
                }
            }
        };
        settled.map_err(|cause| Box::new(request.forbidden(pod, cause)))
    }

    async fn verdict(&self, spec: &Value, deadline: Option<Instant>) -> Result<Verdict, String> {
        let key = DigestCache::<()>::key(&spec.to_string());
        let known = self.remembered.get(&key).filter(|known| Instant::now() < known.0);
        if let Some(known) = known {
            return Ok(known.1.clone());
        }
        let review = image_policy::review(spec);
        let asked = self.reviewer.ask(&review, TIME, |_, _| {});
        let answer = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, asked)
                .await
                .map_err(|_| "context deadline exceeded".to_owned())?,
            None => asked.await,
        };
        let verdict = Verdict::read(&answer.map_err(|error| error.words)?)?;
        let (allowed, denied) = self.settings.remembered;
        let ttl = if verdict.allowed { allowed } else { denied };
        if !ttl.is_zero() {
            self.remembered.insert(key, Arc::new((Instant::now() + ttl, verdict.clone())));
        }
        Ok(verdict)
    }
}
