//! Serves health, readiness and metrics.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode};
use serve::{Body, Handler};
use telemetry::metrics::{self, Gauge, Histogram, IntCounter};
use tokio::net::TcpListener;

/// The upper bounds of the buckets, in seconds, as CoreDNS has them.
const BUCKETS: [f64; 16] = [
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024,
    2.048, 4.096, 8.192,
];
const CODES: [&str; 7] =
    ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "other"];

/// The metrics, with CoreDNS's names.
pub(crate) struct Metrics {
    registry: metrics::Metrics,
    /// The number of queries, over UDP and over TCP.
    requests: [IntCounter; 2],
    responses: [IntCounter; CODES.len()],
    durations: Histogram,
    cache_hits: IntCounter,
    cache_misses: IntCounter,
    cache_entries: Gauge,
    forward_failures: IntCounter,
    panics: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = metrics::Metrics::default();
        let requests = registry.counters("coredns_dns_requests_total", "Queries.", &["proto"]);
        let responses = registry.counters("coredns_dns_responses_total", "Answers.", &["rcode"]);
        let name = "coredns_dns_request_duration_seconds";
        Self {
            requests: ["udp", "tcp"].map(|proto| requests.with_label_values(&[proto])),
            responses: CODES.map(|code| responses.with_label_values(&[code])),
            durations: registry.histogram(name, "How long answers took.", &BUCKETS),
            cache_hits: registry.counter("coredns_cache_hits_total", "Answers from the cache."),
            cache_misses: registry
                .counter("coredns_cache_misses_total", "Queries it did not know."),
            cache_entries: registry.gauge("coredns_cache_entries", "Answers in the cache."),
            forward_failures: registry.counter(
                "coredns_forward_failures_total",
                "Forwarded queries that no upstream server has answered.",
            ),
            panics: registry.counter("coredns_panics_total", "Queries whose answering panicked."),
            registry,
        }
    }
}

impl Metrics {
    /// Records an answered query.
    pub(crate) fn record_response(&self, tcp: bool, response: &[u8], took: Duration) {
        self.requests[usize::from(tcp)].inc();
        let code = response.get(3).map_or(CODES.len(), |flags| usize::from(flags & 0x0f));
        self.responses[code.min(CODES.len() - 1)].inc();
        self.durations.observe(took.as_secs_f64());
    }

    pub(crate) fn cache(&self, hit: bool, entries: usize) {
        if hit { &self.cache_hits } else { &self.cache_misses }.inc();
        self.cache_entries.set(entries as f64);
    }

    pub(crate) fn forward_failed(&self) {
        self.forward_failures.inc();
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    pub(crate) fn text(&self) -> String {
        self.registry.text()
    }
}

struct Page<F>(&'static str, F);

impl<F: Fn() -> (u16, String) + Send + Sync + 'static> Handler for Page<F> {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let is_page = request.uri().path() == self.0;
        let (code, text) =
            if is_page { (self.1)() } else { (404, "404 page not found\n".to_owned()) };
        let status = StatusCode::from_u16(code).unwrap_or_default();
        std::future::ready(serve::answer(status, metrics::CONTENT_TYPE, text)).boxed()
    }
}

/// Serves one page until `tasks` shuts down.
pub(crate) async fn listen(
    path: &'static str,
    address: SocketAddr,
    tasks: &rt::Tasks,
    page: impl Fn() -> (u16, String) + Send + Sync + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    tasks.essential(
        path,
        serve::serve(listener, None, limits, Arc::new(Page(path, page)), tasks.clone()),
    );
    Ok(())
}
