//! Serves the proxy's health, the health checks of Services, and metrics.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use api_meta::Timestamp;
use tokio::time::Instant;

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, header};
use serde_json::json;
use serve::{Body, Handler};
use telemetry::metrics::{self, Gauge, Histogram, IntCounter, Metrics, unix_seconds};
use tokio::net::TcpListener;

use crate::Mode;

/// An answer: status, content type, text, and the number of endpoints for a load balancer.
type Answer = (u16, &'static str, String, Option<usize>);

struct Routes<F>(F);

impl<F: Fn(&str) -> Answer + Send + Sync + 'static> Handler for Routes<F> {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let (status, kind, text, weight) = (self.0)(request.uri().path());
        let status = http::StatusCode::from_u16(status).unwrap_or_default();
        let mut response = serve::answer(status, kind, text);
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
        if let Some(weight) = weight {
            headers.insert("x-load-balancing-endpoint-weight", weight.into());
        }
        std::future::ready(response).boxed()
    }
}

/// Serves `answer` at `address` until `tasks` shuts down.
pub(crate) async fn listen(
    name: &str,
    address: SocketAddr,
    tasks: &rt::Tasks,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    // Probes and scrapers need few connections; this many are an attack or a leak.
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    tasks
        .spawn(name, serve::serve(listener, None, limits, Arc::new(Routes(answer)), tasks.clone()));
    Ok(())
}

/// The state of the proxy for its health checks.
pub(crate) struct Health {
    state: Mutex<State>,
    counted: ProxyMetrics,
    /// The time that an update may wait before the proxy counts as stuck.
    patience: Duration,
    mode: Mode,
    tasks: rt::Tasks,
}

#[derive(Default)]
struct State {
    queued: Option<Instant>,
    updated_at: Option<SystemTime>,
    node_leaves: bool,
}

/// The metrics of kube-proxy, with upstream's names.
struct ProxyMetrics {
    all: Metrics,
    updated_at: Gauge,
    queued_at: Gauge,
    syncs: Histogram,
    failures: IntCounter,
    transactions: IntCounter,
    flows_deleted: IntCounter,
}

/// Upstream's buckets of `sync_proxy_rules_duration_seconds`: powers of two from a millisecond.
const SYNC_BUCKETS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

impl ProxyMetrics {
    fn new() -> Self {
        let all = Metrics::default();
        let name = |what: &str| format!("kubeproxy_sync_proxy_rules_{what}");
        Self {
            updated_at: all
                .gauge(&name("last_timestamp_seconds"), "When rules were last in place."),
            queued_at: all
                .gauge(&name("last_queued_timestamp_seconds"), "When a change last came."),
            syncs: all.histogram(&name("duration_seconds"), "How long it took.", &SYNC_BUCKETS),
            failures: all.counter(
                &name("nftables_sync_failures_total"),
                "How often the rules could not be brought into the kernel.",
            ),
            transactions: all.counter(
                &name("nftables_transactions_total"),
                "Transactions that have changed the kernel's rules.",
            ),
            flows_deleted: all.counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Flows to gone endpoints that were ended.",
            ),
            all,
        }
    }
}

impl Health {
    pub(crate) fn new(sync_period: Duration, mode: Mode, tasks: rt::Tasks) -> Self {
        Self {
            state: Mutex::default(),
            counted: ProxyMetrics::new(),
            patience: sync_period * 2,
            mode,
            tasks,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queued(&self) {
        let mut state = self.state();
        state.queued.get_or_insert_with(Instant::now);
        self.counted.queued_at.set(unix_seconds(rt::now()));
    }

    /// Starts a synchronization. Later changes belong to the next one. Returns the time of the oldest waiting change.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.state().queued.take()
    }

    pub(crate) fn synced(&self, took: Duration, report: crate::Report) {
        let now = rt::now();
        self.state().updated_at = Some(now);
        let counted = &self.counted;
        counted.updated_at.set(unix_seconds(now));
        counted.syncs.observe(took.as_secs_f64());
        counted.transactions.inc_by(report.transactions as u64);
        counted.flows_deleted.inc_by(report.flows_deleted as u64);
    }

    /// Records a failed synchronization; its changes are still waiting.
    pub(crate) fn failed(&self, queued: Option<Instant>) {
        self.counted.failures.inc();
        self.state().queued = queued.or(Some(Instant::now()));
    }

    pub(crate) fn node_leaves(&self, leaves: bool) {
        self.state().node_leaves = leaves;
    }

    fn is_alive(&self) -> bool {
        let state = self.state();
        self.tasks.missing().is_empty()
            && state.updated_at.is_some()
            && state.queued.is_none_or(|since| since.elapsed() < self.patience)
    }

    pub(crate) fn healthz(&self, path: &str) -> Answer {
        let eligible = !self.state().node_leaves;
        let good = match path {
            "/healthz" => self.is_alive() && eligible,
            "/livez" => self.is_alive(),
            _ => return not_found(),
        };
        let updated = self.state().updated_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let mut body = json!({
            "lastUpdated": Timestamp::from(updated).exact(),
            "currentTime": Timestamp::from(rt::now()).exact(),
            "nodeEligible": eligible,
        });
        let missing = self.tasks.missing();
        if let (false, Some(members)) = (missing.is_empty(), body.as_object_mut()) {
            let names = missing.iter().map(|task| &*task.name).collect();
            members.insert("missing".to_owned(), names);
        }
        (if good { 200 } else { 503 }, "application/json", body.to_string(), None)
    }

    pub(crate) fn metrics(&self, path: &str) -> Answer {
        match path {
            "/metrics" => (200, metrics::CONTENT_TYPE, self.counted.all.text(), None),
            "/healthz" => (200, "text/plain; charset=utf-8", "ok".to_owned(), None),
            "/proxyMode" => (200, "text/plain; charset=utf-8", self.mode.name().to_owned(), None),
            _ => not_found(),
        }
    }
}

fn not_found() -> Answer {
    (404, "text/plain; charset=utf-8", "404 page not found\n".to_owned(), None)
}

/// The listeners of `healthCheckNodePort`s, which tell load balancers the nodes with endpoints of a Service.
pub(crate) struct NodePortChecks {
    health: Arc<Health>,
    tasks: rt::Tasks,
    open: HashMap<u16, OpenListener>,
}

struct OpenListener {
    tasks: rt::Tasks,
    state: Arc<Mutex<Check>>,
}

/// The Service of a port, and the number of its local endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) local: usize,
}

impl NodePortChecks {
    pub(crate) fn new(health: Arc<Health>, tasks: rt::Tasks) -> Self {
        Self { health, tasks, open: HashMap::new() }
    }

    /// Opens and closes listeners to match `wanted`.
    pub(crate) async fn set(&mut self, wanted: BTreeMap<u16, Check>) {
        self.open.retain(|port, open| {
            let stays = wanted.contains_key(port);
            if !stays {
                open.tasks.shutdown().stop();
            }
            stays
        });
        for (port, check) in wanted {
            if let Some(open) = self.open.get(&port) {
                *open.state.lock().unwrap_or_else(PoisonError::into_inner) = check;
                continue;
            }
            let tasks = rt::Tasks::new(self.tasks.shutdown().child());
            let state = Arc::new(Mutex::new(check));
            let (health, shared) = (self.health.clone(), state.clone());
            let answer = move |_: &str| {
                let check = shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
                check.answer(health.is_alive())
            };
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            match listen("healthCheckNodePort", address, &tasks, answer).await {
                Ok(()) => drop(self.open.insert(port, OpenListener { tasks, state })),
                Err(error) => {
                    tracing::warn!(port, %error, "listening for a Service's healthCheckNodePort; is the port taken?")
                }
            }
        }
    }
}

impl Check {
    fn answer(&self, alive: bool) -> Answer {
        let status = if self.local > 0 && alive { 200 } else { 503 };
        let body = json!({
            "service": {"namespace": self.namespace, "name": self.name},
            "localEndpoints": self.local,
            "serviceProxyHealthy": alive,
        });
        (status, "application/json", body.to_string(), Some(self.local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_depends_on_updates_and_node() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let health = Health::new(Duration::ZERO, Mode::Nftables, tasks);
        assert_eq!(health.healthz("/healthz").0, 503, "not yet synchronised");
        health.queued();
        let queued = health.begin();
        health.synced(Duration::from_millis(3), crate::Report::default());
        assert_eq!(health.healthz("/healthz").0, 200);
        health.failed(queued);
        assert_eq!(
            (health.healthz("/healthz").0, health.healthz("/livez").0),
            (503, 503),
            "waits too long"
        );
        health.begin();
        health.node_leaves(true);
        assert_eq!((health.healthz("/healthz").0, health.healthz("/livez").0), (503, 200));
        assert!(health.metrics("/metrics").2.contains("nftables_sync_failures_total 1\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn health_names_panicked_informer() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let health = Health::new(Duration::from_secs(30), Mode::Nftables, tasks.clone());
        health.synced(Duration::ZERO, crate::Report::default());
        assert_eq!(health.healthz("/livez").0, 200);
        tasks.keep("informer of services", || async { panic!("on purpose") });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (status, _, text, _) = health.healthz("/healthz");
        assert_eq!(status, 503);
        assert!(text.contains(r#""missing":["informer of services"]"#), "{text}");
        assert!(health.metrics("/metrics").2.contains("windlass_panics_total{worker=\"task\"} "));
    }
}
