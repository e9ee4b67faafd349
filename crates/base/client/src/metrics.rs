//! The metrics of clients, work queues and leader election, with upstream's names.

use std::time::Duration;

use http::{Method, StatusCode};
use telemetry::metrics::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics,
};

/// The bounds of `rest_client_request_duration_seconds`.
const REQUEST_SECONDS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The bounds of the sizes of requests and responses.
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// The bounds of the durations of work queues.
const QUEUE_SECONDS: [f64; 11] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0];

/// The metrics of one component's clients, work queues and leader election.
#[derive(Clone)]
pub struct ClientMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    request_bytes: HistogramVec,
    response_bytes: HistogramVec,
    leading: GaugeVec,
    slow_paths: IntCounterVec,
    queues: QueueFamilies,
    all: Metrics,
}

#[derive(Clone)]
struct QueueFamilies {
    adds: IntCounterVec,
    depth: GaugeVec,
    waits: HistogramVec,
    works: HistogramVec,
    retries: IntCounterVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
}

impl ClientMetrics {
    /// Creates the metrics of a component. Call it once for each component.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            requests: metrics.counters(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            ),
            durations: metrics.histograms(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &REQUEST_SECONDS,
                &["verb", "host"],
            ),
            request_bytes: metrics.histograms(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
                &BYTES,
                &["verb", "host"],
            ),
            response_bytes: metrics.histograms(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                &BYTES,
                &["verb", "host"],
            ),
            leading: metrics.gauges(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates \
                 master. 'name' is the string used to identify the lease. Please make sure to group by name.",
                &["name"],
            ),
            slow_paths: metrics.counters(
                "leader_election_slowpath_total",
                "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify \
                 the lease. Please make sure to group by name.",
                &["name"],
            ),
            queues: QueueFamilies::new(metrics),
            all: metrics.clone(),
        }
    }

    /// Counts a request. Without a status code, no response arrived.
    pub(crate) fn count_request(
        &self,
        method: &Method,
        host: &str,
        code: Option<StatusCode>,
        took: Duration,
    ) {
        let code = code.as_ref().map_or("<error>", StatusCode::as_str);
        self.requests.with_label_values(&[code, method.as_str(), host]).inc();
        let of = [method.as_str(), host];
        self.durations.with_label_values(&of).observe(took.as_secs_f64());
    }

    pub(crate) fn observe_request_bytes(&self, method: &Method, host: &str, bytes: u64) {
        self.request_bytes.with_label_values(&[method.as_str(), host]).observe(bytes as f64);
    }

    pub(crate) fn observe_response_bytes(&self, method: &Method, host: &str, bytes: u64) {
        self.response_bytes.with_label_values(&[method.as_str(), host]).observe(bytes as f64);
    }

    /// Returns the metrics of one lease, which this process does not hold yet.
    pub(crate) fn of_lease(&self, name: &str) -> LeaseMetrics {
        let leading = self.leading.with_label_values(&[name]);
        leading.set(0.0);
        LeaseMetrics { leading, slow_paths: self.slow_paths.with_label_values(&[name]) }
    }

    pub(crate) fn of_queue(&self, name: &str) -> QueueMetrics {
        let of = &self.queues;
        let name = &[name];
        QueueMetrics {
            adds: of.adds.with_label_values(name),
            depth: of.depth.with_label_values(name),
            waits: of.waits.with_label_values(name),
            works: of.works.with_label_values(name),
            retries: of.retries.with_label_values(name),
            unfinished: of.unfinished.with_label_values(name),
            longest: of.longest.with_label_values(name),
        }
    }

    pub(crate) fn before_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        self.all.before_scrape(refresh);
    }
}

impl QueueFamilies {
    fn new(metrics: &Metrics) -> Self {
        let name = &["name"];
        Self {
            adds: metrics.counters(
                "workqueue_adds_total",
                "Total number of adds handled by workqueue",
                name,
            ),
            depth: metrics.gauges("workqueue_depth", "Current depth of workqueue", name),
            waits: metrics.histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
                &QUEUE_SECONDS,
                name,
            ),
            works: metrics.histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                &QUEUE_SECONDS,
                name,
            ),
            retries: metrics.counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
                name,
            ),
            unfinished: metrics.gauges(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has done that is in progress and hasn't been observed by work_duration. \
                 Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate \
                 at which this increases.",
                name,
            ),
            longest: metrics.gauges(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
                name,
            ),
        }
    }
}

/// The metrics of one work queue.
pub(crate) struct QueueMetrics {
    pub(crate) adds: IntCounter,
    pub(crate) depth: Gauge,
    /// The seconds between a key's addition and its processing.
    pub(crate) waits: Histogram,
    /// The seconds that processing a key took.
    pub(crate) works: Histogram,
    pub(crate) retries: IntCounter,
    pub(crate) unfinished: Gauge,
    pub(crate) longest: Gauge,
}

/// The metrics of one lease.
pub(crate) struct LeaseMetrics {
    pub(crate) leading: Gauge,
    /// Renewals that had to read the lease first.
    pub(crate) slow_paths: IntCounter,
}
