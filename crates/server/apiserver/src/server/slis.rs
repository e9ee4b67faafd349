//! Serves `/metrics/slis`: results of the health checks, with upstream's metric names.

use telemetry::metrics::{GaugeVec, IntCounterVec, Metrics};

/// The SLI metrics. They have their own page, so that it can be scraped often.
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
    /// Records the result of a check of `page`: `livez`, `readyz` or `healthz`.
    pub(super) fn record(&self, page: &str, check: &str, passed: bool) {
        self.last.with_label_values(&[page, check]).set(f64::from(u8::from(passed)));
        let status = if passed { "success" } else { "error" };
        self.total.with_label_values(&[page, check, status]).inc();
    }

    pub(super) fn text(&self) -> String {
        self.metrics.text()
    }
}
