//! What others may ask of the server: health, readiness, metrics.

use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode};
use serve::{Body, Handler};
use tokio::net::TcpListener;

/// Upper bounds in microseconds, CoreDNS's.
const BUCKETS: [u64; 16] = [
    250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000,
    1_024_000, 2_048_000, 4_096_000, 8_192_000,
];
const CODES: [&str; 7] =
    ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "other"];

#[derive(Default)]
pub(crate) struct Metrics {
    requests: [AtomicU64; 2],
    responses: [AtomicU64; CODES.len()],
    durations: [AtomicU64; BUCKETS.len() + 1],
    duration_micros: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    cache_entries: AtomicUsize,
    forward_failures: AtomicU64,
    panics: AtomicU64,
}

impl Metrics {
    /// One answered query.
    pub(crate) fn answered(&self, tcp: bool, response: &[u8], took: Duration) {
        self.requests[usize::from(tcp)].fetch_add(1, Relaxed);
        let code = response.get(3).map_or(CODES.len(), |flags| usize::from(flags & 0x0f));
        self.responses[code.min(CODES.len() - 1)].fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.iter().position(|bound| micros <= *bound).unwrap_or(BUCKETS.len());
        self.durations[bucket].fetch_add(1, Relaxed);
        self.duration_micros.fetch_add(micros, Relaxed);
    }

    pub(crate) fn cache(&self, hit: bool, entries: usize) {
        if hit { &self.cache_hits } else { &self.cache_misses }.fetch_add(1, Relaxed);
        self.cache_entries.store(entries, Relaxed);
    }

    pub(crate) fn forward_failed(&self) {
        self.forward_failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    pub(crate) fn exposition(&self) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| _ = writeln!(text, "{line}");
        line(format_args!("# TYPE coredns_dns_requests_total counter"));
        for (proto, count) in ["udp", "tcp"].iter().zip(&self.requests) {
            line(format_args!(
                "coredns_dns_requests_total{{proto=\"{proto}\"}} {}",
                count.load(Relaxed)
            ));
        }
        line(format_args!("# TYPE coredns_dns_responses_total counter"));
        for (code, count) in CODES.iter().zip(&self.responses) {
            line(format_args!(
                "coredns_dns_responses_total{{rcode=\"{code}\"}} {}",
                count.load(Relaxed)
            ));
        }
        let name = "coredns_dns_request_duration_seconds";
        line(format_args!("# TYPE {name} histogram"));
        let mut sum = 0;
        for (bound, count) in BUCKETS.iter().zip(&self.durations) {
            sum += count.load(Relaxed);
            line(format_args!("{name}_bucket{{le=\"{}\"}} {sum}", *bound as f64 / 1e6));
        }
        sum += self.durations[BUCKETS.len()].load(Relaxed);
        line(format_args!("{name}_bucket{{le=\"+Inf\"}} {sum}\n{name}_count {sum}"));
        line(format_args!("{name}_sum {}", self.duration_micros.load(Relaxed) as f64 / 1e6));
        for (name, kind, value) in [
            ("coredns_cache_hits_total", "counter", self.cache_hits.load(Relaxed)),
            ("coredns_cache_misses_total", "counter", self.cache_misses.load(Relaxed)),
            ("coredns_cache_entries", "gauge", self.cache_entries.load(Relaxed) as u64),
            ("coredns_forward_failures_total", "counter", self.forward_failures.load(Relaxed)),
            ("coredns_panics_total", "counter", self.panics.load(Relaxed)),
        ] {
            line(format_args!("# TYPE {name} {kind}\n{name} {value}"));
        }
        text
    }
}

struct Page<F>(&'static str, F);

impl<F: Fn() -> (u16, String) + Send + Sync + 'static> Handler for Page<F> {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let found = request.uri().path() == self.0;
        let (code, text) =
            if found { (self.1)() } else { (404, "404 page not found\n".to_owned()) };
        let status = StatusCode::from_u16(code).unwrap_or_default();
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        std::future::ready(serve::answer(status, kind, text)).boxed()
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
