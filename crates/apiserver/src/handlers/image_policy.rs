//! ImagePolicyWebhook as part of a request: whoever its kubeconfig names is asked about the images of a Pod. What is
//! asked and what the answer comes to `admission::image_policy` decides.

use std::{sync::Arc, time::Duration};

use admission::{
    Outcome, Request,
    image_policy::{self, Settings, Verdict},
};
use api_meta::Status;
use auth::authn::Checked;
use serde_json::Value;
use tokio::time::Instant;

use super::call::Call;
use crate::outbound::reviewer::Reviewer;

/// As many answers are remembered, and up to twice as many: upstream's.
const REMEMBERED: usize = 1024;
/// What one question may take.
const TIME: Duration = Duration::from_secs(30);

pub(crate) struct ImagePolicy {
    settings: Settings,
    reviewer: Reviewer,
    remembered: Checked<(Instant, Verdict)>,
}

impl ImagePolicy {
    /// Reads the plugin's part of the admission configuration.
    pub(crate) fn new(configuration: &Value) -> Result<Self, String> {
        let settings = Settings::read(configuration)?;
        let reviewer = Reviewer::new(&settings.kubeconfig).map_err(|error| error.to_string())?;
        let reviewer = reviewer.waiting(settings.retry);
        Ok(Self { settings, reviewer, remembered: Checked::new(REMEMBERED) })
    }

    /// Refuses a Pod whose images may not be.
    pub(crate) async fn judge(
        &self,
        call: &Call,
        request: &Request<'_>,
        pod: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Some(spec) = image_policy::question(request, pod) else { return Ok(()) };
        let asked = Instant::now();
        let verdict = self.verdict(&spec, call.deadline).await;
        call.elsewhere.add(asked.elapsed());
        let settled = match verdict {
            Ok(verdict) => verdict.settle(outcome),
            Err(error) => {
                tracing::warn!(error, "error contacting webhook backend");
                match self.settings.default_allow {
                    true => {
                        image_policy::failed_open(outcome);
                        Ok(())
                    }
                    false => Err(error),
                }
            }
        };
        settled.map_err(|cause| Box::new(request.forbidden(pod, cause)))
    }

    async fn verdict(&self, spec: &Value, deadline: Option<Instant>) -> Result<Verdict, String> {
        let key = Checked::<()>::key(&spec.to_string());
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
