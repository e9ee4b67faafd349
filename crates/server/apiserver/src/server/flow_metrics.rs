//! Metrics of flow control, with upstream's names. Flow schemas and priority levels are objects of administrators, so
//! clients add no series.

use std::time::Duration;

use telemetry::metrics::{Gauge, GaugeVec, HistogramVec, IntCounterVec, Metrics};

/// The bounds of `apiserver_flowcontrol_request_wait_duration_seconds`.
const WAITS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// The metrics of requests in flow control.
pub(crate) struct FlowMetrics {
    executing: GaugeVec,
    dispatched: IntCounterVec,
    rejected: IntCounterVec,
    waits: HistogramVec,
}

impl FlowMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let of = &["flow_schema", "priority_level"];
        Self {
            executing: metrics.gauges(
                "apiserver_flowcontrol_current_executing_requests",
                "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API \
                 Priority and Fairness subsystem",
                of,
            ),
            dispatched: metrics.counters(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Number of requests executed by API Priority and Fairness subsystem",
                of,
            ),
            rejected: metrics.counters(
                "apiserver_flowcontrol_rejected_requests_total",
                "Number of requests rejected by API Priority and Fairness subsystem",
                &["flow_schema", "priority_level", "reason"],
            ),
            waits: metrics.histograms(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "Length of time a request spent waiting in its queue",
                &WAITS,
                &["execute", "flow_schema", "priority_level"],
            ),
        }
    }

    /// Counts a request that may run. It counts as executing until its permit is dropped.
    pub(crate) fn admitted(&self, admitted: &mut flow::AdmittedRequest, waited: Duration) {
        let of = [&*admitted.arrival.schema, &*admitted.arrival.level];
        self.dispatched.with_label_values(&of).inc();
        self.waits.with_label_values(&["true", of[0], of[1]]).observe(waited.as_secs_f64());
        let executing = self.executing.with_label_values(&of);
        executing.inc();
        admitted.permit.keep(Executing(executing));
    }

    /// Counts a rejected request.
    pub(crate) fn rejected(&self, rejection: &flow::Rejection, waited: Duration) {
        let (schema, level) = (&*rejection.schema, &*rejection.level);
        self.rejected.with_label_values(&[schema, level, rejection.reason.as_str()]).inc();
        self.waits.with_label_values(&["false", schema, level]).observe(waited.as_secs_f64());
    }
}

/// Decrements the gauge of executing requests when it is dropped.
struct Executing(Gauge);

impl Drop for Executing {
    fn drop(&mut self) {
        self.0.dec();
    }
}
