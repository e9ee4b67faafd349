//! Metrics of admission policies, with upstream's names.

use std::time::Duration;

use admission::policy::{Binding, Policy, PolicyResult};
use telemetry::metrics::{HistogramVec, IntCounterVec, Metrics};

const BUCKETS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const FAILED: &str = "invalid_error";
const DONE: &str = "no_error";

/// The metrics of admission policies.
pub(super) struct PolicyMetrics {
    validating: Checks,
    mutating: Checks,
}

struct Checks {
    total: IntCounterVec,
    durations: HistogramVec,
}

impl Checks {
    fn new(metrics: &Metrics, side: &str, [total, took]: [&str; 2], labels: &[&str]) -> Self {
        let name = |what| format!("apiserver_{side}_admission_policy_check_{what}");
        Self {
            total: metrics.counters(&name("total"), total, labels),
            durations: metrics.histograms(&name("duration_seconds"), took, &BUCKETS, labels),
        }
    }

    fn record(&self, labels: &[&str], took: Duration) {
        self.total.with_label_values(labels).inc();
        self.durations.with_label_values(labels).observe(took.as_secs_f64());
    }
}

impl PolicyMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            validating: Checks::new(
                metrics,
                "validating",
                [
                    "Validations that were not passed, by policy, binding and what was done about it.",
                    "How long these validations took.",
                ],
                &["policy", "policy_binding", "error_type", "enforcement_action"],
            ),
            mutating: Checks::new(
                metrics,
                "mutating",
                [
                    "Mutations by policy and binding, and whether they failed.",
                    "How long mutations took.",
                ],
                &["policy", "policy_binding", "error_type"],
            ),
        }
    }

    /// Counts failed validations only, all with the same error type, as upstream does.
    pub(super) fn record_validation(
        &self,
        policy: &Policy,
        binding: &Binding,
        judged: &PolicyResult,
    ) {
        for (action, took) in judged.enforced(binding) {
            self.validating.record(&[&policy.name, &binding.name, FAILED, action], took);
        }
    }

    pub(super) fn record_mutation(
        &self,
        policy: &Policy,
        binding: &Binding,
        failed: bool,
        took: Duration,
    ) {
        let error = if failed { FAILED } else { DONE };
        self.mutating.record(&[&policy.name, &binding.name, error], took);
    }
}
