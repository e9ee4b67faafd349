//! Metrics of admission webhooks, with upstream's names.

use std::time::Duration;

use admission::{
    Request,
    webhook::{Failure, Webhook},
};
use telemetry::metrics::{HistogramVec, IntCounterVec, Metrics};

const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Higher codes are counted as this one.
const HIGHEST_CODE: u16 = 600;

/// The metrics of admission webhooks.
pub(super) struct WebhookMetrics {
    durations: HistogramVec,
    rejections: IntCounterVec,
    fail_open: IntCounterVec,
    requests: IntCounterVec,
}

impl WebhookMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counters = |what: &str, help, labels| {
            metrics.counters(&format!("apiserver_admission_webhook_{what}"), help, labels)
        };
        Self {
            durations: metrics.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "How long webhooks took.",
                &BUCKETS,
                &["name", "type", "operation", "rejected"],
            ),
            rejections: counters(
                "rejection_count",
                "Requests that a webhook, or its failure, has refused.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            ),
            fail_open: counters(
                "fail_open_count",
                "Failures of webhooks that were passed over.",
                &["name", "type"],
            ),
            requests: counters(
                "request_total",
                "Calls of webhooks.",
                &["name", "type", "operation", "code", "rejected"],
            ),
        }
    }

    /// Records a call and its duration. `phase` is `admit` or `validating`.
    pub(super) fn record(
        &self,
        webhook: &Webhook,
        phase: &str,
        request: &Request<'_>,
        took: Duration,
        failure: Option<&Failure>,
    ) {
        let name = webhook.name.as_str();
        let operation = request.operation.to_string();
        let passes = |failure: &&Failure| webhook.settle((*failure).clone()).is_ok();
        let refusal = failure.filter(|failure| !passes(failure)).map(Failure::kind);
        let rejected = refusal.is_some().to_string();
        let of = [name, phase, &operation, &rejected];
        self.durations.with_label_values(&of).observe(took.as_secs_f64());
        let code = failure.map_or(200, |failure| failure.kind().1).min(HIGHEST_CODE).to_string();
        self.requests.with_label_values(&[name, phase, &operation, &code, &rejected]).inc();
        if let Some((error, code)) = refusal {
            let code = code.min(HIGHEST_CODE).to_string();
            self.rejections.with_label_values(&[name, phase, &operation, error, &code]).inc();
        } else if failure.is_some() {
            self.fail_open.with_label_values(&[name, phase]).inc();
        }
    }
}
