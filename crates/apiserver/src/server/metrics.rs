//! `/metrics`: the API server's figures under upstream's names, in the text format.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use http::StatusCode;

use crate::request::RequestInfo;

/// Upstream's buckets of `apiserver_request_duration_seconds`, thinned.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 2.0, 5.0, 15.0, 60.0];

#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<Labels, Series>>,
    in_flight: AtomicI64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    code: u16,
}

#[derive(Default)]
struct Series {
    count: u64,
    sum: f64,
    buckets: [u64; BUCKETS.len()],
}

/// A request that is being answered. If it panics it is counted as what its client is told.
pub(crate) struct InFlight<'a> {
    metrics: &'a Metrics,
    info: Arc<RequestInfo>,
    started: Instant,
}

impl InFlight<'_> {
    pub(crate) fn answered(self, code: StatusCode) {
        self.metrics.record(&self.info, code, self.started.elapsed());
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        if std::thread::panicking() {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            self.metrics.record(&self.info, code, self.started.elapsed());
        }
    }
}

impl Metrics {
    pub(crate) fn begin(&self, info: Arc<RequestInfo>) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { metrics: self, info, started: Instant::now() }
    }

    fn record(&self, info: &RequestInfo, code: StatusCode, took: Duration) {
        // Paths that name no served resource would let a client grow this without bound.
        let known = code != StatusCode::NOT_FOUND;
        let resource = info.resource.as_ref().filter(|_| known);
        let labels = Labels {
            verb: info.verb,
            group: resource.map(|r| r.group.clone()).unwrap_or_default(),
            version: resource.map(|r| r.version.clone()).unwrap_or_default(),
            resource: resource.map(|r| r.resource.clone()).unwrap_or_default(),
            subresource: resource.map(|r| r.subresource.clone()).unwrap_or_default(),
            scope: match resource {
                Some(r) if !r.name.is_empty() => "resource",
                Some(r) if !r.namespace.is_empty() => "namespace",
                Some(_) => "cluster",
                None => "",
            },
            code: code.as_u16(),
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = requests.entry(labels).or_default();
        series.count += 1;
        let seconds = took.as_secs_f64();
        series.sum += seconds;
        for (bucket, _) in
            series.buckets.iter_mut().zip(BUCKETS).filter(|(_, edge)| seconds <= *edge)
        {
            *bucket += 1;
        }
    }

    /// The text; `objects` are counts by `resource.group`.
    pub(crate) fn text(&self, objects: &[(String, usize)], stored_bytes: u64) -> String {
        let mut out = String::from("# TYPE apiserver_request_total counter\n");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for (labels, series) in requests.iter() {
            let _ = writeln!(
                out,
                "apiserver_request_total{{{},code=\"{}\"}} {}",
                labels.text(),
                labels.code,
                series.count
            );
        }
        out.push_str("# TYPE apiserver_request_duration_seconds histogram\n");
        for (labels, series) in requests.iter() {
            let shown = labels.text();
            for (edge, count) in BUCKETS.iter().zip(series.buckets) {
                let _ = writeln!(
                    out,
                    "apiserver_request_duration_seconds_bucket{{{shown},code=\"{}\",le=\"{edge}\"}} {count}",
                    labels.code
                );
            }
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_bucket{{{shown},code=\"{}\",le=\"+Inf\"}} {}",
                labels.code, series.count
            );
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_sum{{{shown},code=\"{}\"}} {}",
                labels.code, series.sum
            );
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_count{{{shown},code=\"{}\"}} {}",
                labels.code, series.count
            );
        }
        let _ = writeln!(
            out,
            "# TYPE apiserver_current_inflight_requests gauge\napiserver_current_inflight_requests {}",
            self.in_flight.load(Ordering::Relaxed)
        );
        out.push_str("# TYPE apiserver_storage_objects gauge\n");
        for (resource, count) in objects {
            let _ = writeln!(out, "apiserver_storage_objects{{resource=\"{resource}\"}} {count}");
        }
        let _ = writeln!(
            out,
            "# TYPE apiserver_storage_size_bytes gauge\napiserver_storage_size_bytes {stored_bytes}"
        );
        out.push_str(&rt::panics_text());
        out
    }
}

impl Labels {
    fn text(&self) -> String {
        format!(
            "verb=\"{}\",group=\"{}\",version=\"{}\",resource=\"{}\",subresource=\"{}\",scope=\"{}\"",
            self.verb.to_uppercase(),
            self.group,
            self.version,
            self.resource,
            self.subresource,
            self.scope
        )
    }
}
