//! The page `/metrics/slis`: results of the health checks, with upstream's metric names.

use telemetry::metrics::{GaugeVec, IntCounterVec, Metrics};

/// The results of health checks. They have their own page, so that it can be scraped often.
pub struct Slis {
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
                "This metric records the result of a single healthcheck.",
                &["type", "name"],
            ),
            total: metrics.counters(
                "kubernetes_healthchecks_total",
                "This metric records the results of all healthcheck.",
                &["type", "name", "status"],
            ),
            metrics,
        }
    }
}

impl Slis {
    /// Records the result of a check of `page`: `livez`, `readyz` or `healthz`. Names of checks come from a small set.
    pub fn record(&self, page: &str, check: &str, passed: bool) {
        self.last.with_label_values(&[page, check]).set(f64::from(u8::from(passed)));
        let status = if passed { "success" } else { "error" };
        self.total.with_label_values(&[page, check, status]).inc();
    }

    /// Returns the page in the text format.
    pub fn text(&self) -> String {
        self.metrics.text()
    }
}
