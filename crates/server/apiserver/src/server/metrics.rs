//! Request and server metrics, with upstream's names.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serve::{Body, BodyWithGuard};
use telemetry::metrics::{Gauge, GaugeVec, HistogramVec, IntCounterVec, Metrics};
use tokio::time::Instant;

use crate::{
    handlers::{call::WaitTime, state::State},
    request::RequestInfo,
    watch_cache::Kinds,
};

/// Upstream's buckets of `apiserver_request_duration_seconds`. The SLI histogram omits the first two.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The metrics of requests, with upstream's names.
pub(crate) struct RequestMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    /// Excludes the time spent waiting for a seat and for webhooks.
    own_durations: HistogramVec,
    mutating: Gauge,
    read_only: Gauge,
    /// Open watches and connections, by resource.
    lasting: GaugeVec,
    /// The sizes of responses to reads.
    sizes: HistogramVec,
    /// Requests that the server rejected in self-defense.
    terminations: IntCounterVec,
}

/// The bounds of `apiserver_response_sizes`.
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Returns the durations of streaming lists.
pub(crate) fn watch_lists(metrics: &Metrics) -> HistogramVec {
    metrics.histograms(
        "apiserver_watch_list_duration_seconds",
        "Response latency distribution in seconds for watch list requests broken by group, version, resource and \
         scope.",
        &[
            0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
        ],
        &["group", "version", "resource", "scope"],
    )
}

/// Returns the gauge of deprecated APIs that were requested.
pub(crate) fn deprecated_apis(metrics: &Metrics) -> GaugeVec {
    metrics.gauges(
        "apiserver_requested_deprecated_apis",
        "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, \
         and removed_release.",
        &["group", "version", "resource", "subresource", "removed_release"],
    )
}

impl RequestMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        const OF: [&str; 8] = [
            "verb",
            "dry_run",
            "group",
            "version",
            "resource",
            "subresource",
            "scope",
            "component",
        ];
        const OF_STREAMS: [&str; 7] =
            ["verb", "group", "version", "resource", "subresource", "scope", "component"];
        const OF_TERMINATIONS: [&str; 8] =
            ["verb", "group", "version", "resource", "subresource", "scope", "component", "code"];
        let in_flight = metrics.gauges(
            "apiserver_current_inflight_requests",
            "Requests that are being answered.",
            &["request_kind"],
        );
        let with_code: Vec<&str> = OF.into_iter().chain(["code"]).collect();
        Self {
            requests: metrics.counters(
                "apiserver_request_total",
                "Requests by what was asked for and the code of the answer.",
                &with_code,
            ),
            durations: metrics.histograms(
                "apiserver_request_duration_seconds",
                "How long the answer to a request took.",
                &BUCKETS,
                &OF,
            ),
            own_durations: metrics.histograms(
                "apiserver_request_sli_duration_seconds",
                "How long the answer took, without waiting in flow control and for webhooks.",
                &BUCKETS[2..],
                &OF,
            ),
            mutating: in_flight.with_label_values(&["mutating"]),
            read_only: in_flight.with_label_values(&["readOnly"]),
            lasting: metrics.gauges(
                "apiserver_longrunning_requests",
                "Requests that stay open: watches, and what is followed or proxied.",
                &OF_STREAMS,
            ),
            sizes: metrics.histograms(
                "apiserver_response_sizes",
                "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and \
                 component.",
                &SIZES,
                &OF_STREAMS,
            ),
            terminations: metrics.counters(
                "apiserver_request_terminations_total",
                "Number of requests which apiserver terminated in self-defense.",
                &OF_TERMINATIONS,
            ),
        }
    }

    pub(crate) fn begin(&self, labels: Labels) -> InFlight<'_> {
        self.in_flight(&labels).inc();
        InFlight { metrics: self, labels, started: Instant::now(), waited: WaitTime::default() }
    }

    /// Returns the number of requests without a response yet.
    pub(crate) fn unanswered(&self) -> f64 {
        self.mutating.get() + self.read_only.get()
    }

    fn in_flight(&self, labels: &Labels) -> &Gauge {
        match labels.verb {
            "GET" | "HEAD" | "LIST" | "WATCH" => &self.read_only,
            _ => &self.mutating,
        }
    }

    fn record(&self, labels: &Labels, code: StatusCode, took: Duration, waited: Duration) {
        let of = labels.values();
        let mut with_code = [""; 9];
        with_code[..of.len()].copy_from_slice(&of);
        with_code[of.len()] = code.as_str();
        self.requests.with_label_values(&with_code).inc();
        self.durations.with_label_values(&of).observe(took.as_secs_f64());
        let own = took.saturating_sub(waited);
        self.own_durations.with_label_values(&of).observe(own.as_secs_f64());
    }
}

/// The labels of a request. Names of resources that are not served are left out, because clients could fill the memory
/// with them.
pub(crate) struct Labels {
    verb: &'static str,
    dry_run: &'static str,
    scope: &'static str,
    info: Arc<RequestInfo>,
    is_served: bool,
}

impl Labels {
    pub(crate) fn of(info: &Arc<RequestInfo>, headers: &HeaderMap, kinds: &Kinds) -> Self {
        let is_served = info.resource.as_ref().is_some_and(|path| {
            let found = kinds.find(&path.group, &path.version, &path.resource);
            found.is_some_and(|(resource, version)| {
                let served = &resource.definition.served[version];
                path.subresource.is_empty() || served.subresource(&path.subresource).is_some()
            })
        });
        let path = info.resource.as_ref().filter(|_| is_served);
        let scope = match path {
            Some(path) if !path.name.is_empty() || info.verb == "create" => "resource",
            Some(path) if !path.namespace.is_empty() => "namespace",
            Some(_) => "cluster",
            None => "",
        };
        let dry_run = if info.query.get("dryRun").is_some() { "All" } else { "" };
        Self { verb: verb(info, headers), dry_run, scope, info: info.clone(), is_served }
    }

    fn values(&self) -> [&str; 8] {
        let path = self.info.resource.as_ref().filter(|_| self.is_served);
        let [group, version, resource, subresource] = path.map_or([""; 4], |path| {
            [&path.group, &path.version, &path.resource, &path.subresource].map(String::as_str)
        });
        let Self { verb, dry_run, scope, .. } = self;
        [verb, dry_run, group, version, resource, subresource, scope, "apiserver"]
    }

    fn without_dry_run(&self) -> [&str; 7] {
        let [verb, _, group, version, resource, subresource, scope, component] = self.values();
        [verb, group, version, resource, subresource, scope, component]
    }
}

/// Returns the verb as in upstream's metrics: the HTTP method, split where one method serves several operations.
fn verb(info: &RequestInfo, headers: &HeaderMap) -> &'static str {
    let applied = || {
        let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        given.is_some_and(|given| given.starts_with("application/apply-patch+"))
    };
    let subresource = info.resource.as_ref().map_or("", |path| path.subresource.as_str());
    match (info.verb, subresource) {
        (_, "attach" | "exec" | "portforward" | "proxy") => "CONNECT",
        ("get", _) => "GET",
        ("head", _) => "HEAD",
        ("list", _) => "LIST",
        ("watch", _) => "WATCH",
        ("create" | "post", _) => "POST",
        ("update" | "put", _) => "PUT",
        ("patch", _) if applied() => "APPLY",
        ("patch", _) => "PATCH",
        ("delete", _) => "DELETE",
        ("deletecollection", _) => "DELETECOLLECTION",
        _ => "other",
    }
}

/// A request that is being answered. If its handler panics, it is counted with the code 500 that the client receives.
pub(crate) struct InFlight<'a> {
    metrics: &'a RequestMetrics,
    labels: Labels,
    started: Instant,
    pub(crate) waited: WaitTime,
}

impl InFlight<'_> {
    /// Counts a response in `apiserver_longrunning_requests` until it ends or its client disconnects.
    pub(crate) fn track_stream(&self, response: Response<Body>) -> Response<Body> {
        let of = self.labels.without_dry_run();
        let open = self.metrics.lasting.with_label_values(&of);
        open.inc();
        response.map(|body| BodyWithGuard::new(body, OpenRequest(open)).boxed_unsync())
    }

    /// Counts a request that the server rejects in self-defense.
    pub(crate) fn terminated(&self, code: StatusCode) {
        let [verb, group, version, resource, subresource, scope, component] =
            self.labels.without_dry_run();
        let of = [verb, group, version, resource, subresource, scope, component, code.as_str()];
        self.metrics.terminations.with_label_values(&of).inc();
    }

    /// Counts the response. `size` is its length in bytes, if it is known.
    pub(crate) fn finish(self, code: StatusCode, size: Option<u64>) {
        self.record(code);
        // As upstream: only the responses to reads matter.
        if let Some(size) = size.filter(|_| matches!(self.labels.verb, "GET" | "LIST")) {
            let sizes = &self.metrics.sizes;
            sizes.with_label_values(&self.labels.without_dry_run()).observe(size as f64);
        }
    }

    fn record(&self, code: StatusCode) {
        self.metrics.record(&self.labels, code, self.started.elapsed(), self.waited.get());
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.metrics.in_flight(&self.labels).dec();
        if std::thread::panicking() {
            self.record(StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}

/// Decrements the gauge of open requests when the response body is dropped.
struct OpenRequest(Gauge);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Metrics that are refreshed at each scrape.
pub(crate) struct ServerMetrics {
    gate: Arc<flow::Gate>,
    objects: GaugeVec,
    /// Changes received from the store, by kind.
    received: IntCounterVec,
    stored_bytes: GaugeVec,
    nominal_seats: GaugeVec,
    seats: GaugeVec,
    seats_in_use: GaugeVec,
    waiting: GaugeVec,
}

impl ServerMetrics {
    pub(crate) fn new(metrics: &Metrics, gate: Arc<flow::Gate>) -> Self {
        let level = &["priority_level"];
        let gauges = |name, help, labels| metrics.gauges(name, help, labels);
        Self {
            gate,
            objects: gauges("apiserver_storage_objects", "Stored objects by kind.", &["resource"]),
            received: metrics.counters(
                "apiserver_storage_events_received_total",
                "Number of etcd events received split by kind.",
                &["group", "resource"],
            ),
            stored_bytes: gauges(
                "apiserver_storage_size_bytes",
                "The size of the store.",
                &["storage_cluster_id"],
            ),
            nominal_seats: gauges(
                "apiserver_flowcontrol_nominal_limit_seats",
                "Seats that are a priority level's share, before it lends or borrows any.",
                level,
            ),
            seats: gauges(
                "apiserver_flowcontrol_current_limit_seats",
                "Seats that a priority level has.",
                level,
            ),
            seats_in_use: gauges(
                "apiserver_flowcontrol_current_executing_seats",
                "Seats of a priority level that are taken.",
                level,
            ),
            waiting: gauges(
                "apiserver_flowcontrol_current_inqueue_requests",
                "Requests that wait for a seat of a priority level.",
                level,
            ),
        }
    }

    /// Sets the gauges to the current values.
    pub(crate) fn refresh(&self, state: &State) {
        // Remove the values of deleted kinds and levels.
        let of_levels = [&self.nominal_seats, &self.seats, &self.seats_in_use, &self.waiting];
        for all in of_levels.into_iter().chain([&self.objects]) {
            all.reset();
        }
        for resource in state.cache.kinds().all.iter() {
            let Some(cache) = &resource.cache else { continue };
            let name = resource.definition.group_resource().to_string();
            self.objects.with_label_values(&[name]).set(cache.len() as f64);
            let of = [&*resource.definition.group, &*resource.definition.plural];
            let received = self.received.with_label_values(&of);
            // A kind that was deleted and created again starts at zero.
            received.inc_by(cache.received.load(Ordering::Relaxed).saturating_sub(received.get()));
        }
        for (index, feed) in state.cache.feeds().iter().enumerate() {
            let bytes = feed.size.load(Ordering::Relaxed);
            self.stored_bytes.with_label_values(&[&format!("etcd-{index}")]).set(bytes as f64);
        }
        for level in self.gate.levels() {
            let of = |all: &GaugeVec, value: f64| all.with_label_values(&[&level.name]).set(value);
            of(&self.nominal_seats, f64::from(level.nominal));
            of(&self.seats, f64::from(level.limit));
            of(&self.seats_in_use, f64::from(level.in_use));
            of(&self.waiting, level.waiting as f64);
        }
    }
}
