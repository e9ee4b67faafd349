//! `/metrics/slis`: how often each health check passed and failed, under upstream's names.

use telemetry::metrics::{GaugeVec, IntCounterVec, Metrics};

/// A page of its own, so that it can be read often.
pub(crate) struct Slis {
    metrics: Metrics,
    last: GaugeVec,
    total: IntCounterVec,
}

impl Default for Slis {
    fn default() -> Self {
        let metrics = Metrics::default();
        Self {
            last: metrics.gauges(
                "kubernetes_healthcheck",
                "The last result of each check: 1 if it passed.",
                &["type", "name"],
            ),
            total: metrics.counters(
                "kubernetes_healthchecks_total",
                "The results of each check.",
                &["type", "name", "status"],
            ),
            metrics,
        }
    }
}

impl Slis {
    /// Takes note of a check that was made for `page`: `livez`, `readyz` or `healthz`.
    pub(super) fn record(&self, page: &str, check: &str, passed: bool) {
        self.last.with_label_values(&[page, check]).set(f64::from(u8::from(passed)));
        let status = if passed { "success" } else { "error" };
        self.total.with_label_values(&[page, check, status]).inc();
    }

    pub(super) fn text(&self) -> String {
        self.metrics.text()
    }
}
