//! Serves the proxy's health, the health checks of Services, and metrics.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::FeatureGates;
use api_meta::Timestamp;
use client::{Client, ClientMetrics};
use diagnostics::{ComponentInfo, Slis, component_metrics};
use parking_lot::Mutex;
use tokio::time::Instant;

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode, header};
use serde_json::json;
use serve::{Body, Handler};
use telemetry::metrics::{self, Gauge, Histogram, IntCounter, Metrics, unix_seconds};
use tokio::net::TcpListener;

use crate::config::Mode;

/// The response of a health check or of the metrics page.
pub(crate) struct HealthResponse {
    pub(crate) status: StatusCode,
    content_type: &'static str,
    body: String,
    /// The number of endpoints for a load balancer.
    endpoints: Option<usize>,
}

impl HealthResponse {
    fn json(healthy: bool, body: &serde_json::Value) -> Self {
        let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = body.to_string();
        Self { status, content_type: "application/json", body, endpoints: None }
    }

    fn text(status: StatusCode, body: &str) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self { status, content_type, body: body.to_owned(), endpoints: None }
    }
}

struct Routes<F>(F);

impl<F: Fn(&str) -> HealthResponse + Send + Sync + 'static> Handler for Routes<F> {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let HealthResponse { status, content_type, body, endpoints } =
            (self.0)(request.uri().path());
        let mut response = serve::answer(status, content_type, body);
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
        if let Some(weight) = endpoints {
            headers.insert("x-load-balancing-endpoint-weight", weight.into());
        }
        std::future::ready(response).boxed()
    }
}

/// Serves `respond` at `address` until `tasks` shuts down.
pub(crate) async fn listen(
    name: &str,
    address: SocketAddr,
    tasks: &rt::Tasks,
    respond: impl Fn(&str) -> HealthResponse + Send + Sync + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    // Probes and scrapers need few connections; this many are an attack or a leak.
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    tasks.spawn(
        name,
        serve::serve(listener, None, limits, Arc::new(Routes(respond)), tasks.clone()),
    );
    Ok(())
}

/// The state of the proxy for its health checks.
pub(crate) struct Health {
    state: Mutex<State>,
    metrics: ProxyMetrics,
    /// The time that an update may wait before the proxy counts as stuck.
    patience: Duration,
    mode: Mode,
    tasks: rt::Tasks,
    slis: Slis,
    info: ComponentInfo,
    /// The feature gates, which switch `/flagz` and `/statusz`.
    features: FeatureGates,
    configuration: serde_json::Value,
}

#[derive(Default)]
struct State {
    queued: Option<Instant>,
    updated_at: Option<SystemTime>,
    node_leaves: bool,
}

/// The metrics of kube-proxy, with upstream's names.
struct ProxyMetrics {
    registry: Metrics,
    updated_at: Gauge,
    queued_at: Gauge,
    syncs: Histogram,
    failures: IntCounter,
    transactions: IntCounter,
    flows_deleted: IntCounter,
}

/// The paths of the proxy, for `/statusz`.
const PATHS: &[&str] =
    &["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];

/// Upstream's buckets of `sync_proxy_rules_duration_seconds`: powers of two from a millisecond.
const SYNC_BUCKETS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

impl ProxyMetrics {
    fn new(features: &FeatureGates) -> Self {
        let registry = component_metrics(features);
        let name = |what: &str| format!("kubeproxy_sync_proxy_rules_{what}");
        Self {
            updated_at: registry
                .gauge(&name("last_timestamp_seconds"), "When rules were last in place."),
            queued_at: registry
                .gauge(&name("last_queued_timestamp_seconds"), "When a change last came."),
            syncs: registry.histogram(
                &name("duration_seconds"),
                "How long it took.",
                &SYNC_BUCKETS,
            ),
            failures: registry.counter(
                &name("nftables_sync_failures_total"),
                "How often the rules could not be brought into the kernel.",
            ),
            transactions: registry.counter(
                &name("nftables_transactions_total"),
                "Transactions that have changed the kernel's rules.",
            ),
            flows_deleted: registry.counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Flows to gone endpoints that were ended.",
            ),
            registry,
        }
    }
}

impl Health {
    pub(crate) fn new(sync_period: Duration, mode: Mode, tasks: rt::Tasks) -> Self {
        Self {
            state: Mutex::default(),
            metrics: ProxyMetrics::new(&FeatureGates::default()),
            features: FeatureGates::default(),
            patience: sync_period * 2,
            mode,
            tasks,
            slis: Slis::default(),
            info: ComponentInfo { name: "kube-proxy", started: rt::now().into(), paths: PATHS },
            configuration: serde_json::Value::Null,
        }
    }

    /// Sets the effective configuration, for `/configz`.
    pub(crate) fn configured(self, configuration: serde_json::Value) -> Self {
        Self { configuration, ..self }
    }

    /// Sets the feature gates, which switch `/flagz` and `/statusz`. Called before anything is measured.
    pub(crate) fn with_features(self, features: FeatureGates) -> Self {
        Self { metrics: ProxyMetrics::new(&features), features, ..self }
    }

    /// Counts the requests of a client in the proxy's metrics.
    pub(crate) fn measured(&self, client: Client) -> Client {
        client.measured(&ClientMetrics::new(&self.metrics.registry))
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn queued(&self) {
        let mut state = self.state();
        state.queued.get_or_insert_with(Instant::now);
        self.metrics.queued_at.set(unix_seconds(rt::now()));
    }

    /// Starts a synchronization. Later changes belong to the next one. Returns the time of the oldest waiting change.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.state().queued.take()
    }

    pub(crate) fn synced(&self, took: Duration, report: crate::sync::Report) {
        let now = rt::now();
        self.state().updated_at = Some(now);
        let metrics = &self.metrics;
        metrics.updated_at.set(unix_seconds(now));
        metrics.syncs.observe(took.as_secs_f64());
        metrics.transactions.inc_by(report.transactions as u64);
        metrics.flows_deleted.inc_by(report.flows_deleted as u64);
    }

    /// Records a failed synchronization; its changes are still waiting.
    pub(crate) fn failed(&self, queued: Option<Instant>) {
        self.metrics.failures.inc();
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

    pub(crate) fn healthz(&self, path: &str) -> HealthResponse {
        let eligible = !self.state().node_leaves;
        let good = match path {
            "/healthz" => self.is_alive() && eligible,
            "/livez" => self.is_alive(),
            _ => return not_found(),
        };
        self.slis.record(path.trim_start_matches('/'), "proxy", good);
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
        HealthResponse::json(good, &body)
    }

    pub(crate) fn metrics(&self, path: &str) -> HealthResponse {
        let page = |text: String| HealthResponse {
            content_type: metrics::CONTENT_TYPE,
            ..HealthResponse::text(StatusCode::OK, &text)
        };
        match path {
            "/metrics" => page(self.metrics.registry.text()),
            "/metrics/slis" => page(self.slis.text()),
            "/configz" => HealthResponse::json(true, &self.configuration),
            "/flagz" if self.features.is_enabled("ComponentFlagz") => {
                HealthResponse::text(StatusCode::OK, &self.info.flag_page(diagnostics::flags()))
            }
            "/statusz" if self.features.is_enabled("ComponentStatusz") => {
                HealthResponse::text(StatusCode::OK, &self.info.status_page(rt::now().into()))
            }
            "/healthz" => HealthResponse::text(StatusCode::OK, "ok"),
            "/proxyMode" => HealthResponse::text(StatusCode::OK, self.mode.name()),
            _ => not_found(),
        }
    }
}

fn not_found() -> HealthResponse {
    HealthResponse::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The listeners of `healthCheckNodePort`s, which show load balancers the nodes with endpoints of a Service.
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

    /// Opens and closes listeners to match `checks`.
    pub(crate) async fn set(&mut self, checks: BTreeMap<u16, Check>) {
        self.open.retain(|port, open| {
            let stays = checks.contains_key(port);
            if !stays {
                open.tasks.shutdown().stop();
            }
            stays
        });
        for (port, check) in checks {
            if let Some(open) = self.open.get(&port) {
                *open.state.lock() = check;
                continue;
            }
            let tasks = rt::Tasks::new(self.tasks.shutdown().child());
            let state = Arc::new(Mutex::new(check));
            let (health, shared) = (self.health.clone(), state.clone());
            let respond = move |_: &str| {
                let check = shared.lock().clone();
                check.response(health.is_alive())
            };
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            match listen("healthCheckNodePort", address, &tasks, respond).await {
                Ok(()) => drop(self.open.insert(port, OpenListener { tasks, state })),
                Err(error) => {
                    tracing::warn!(port, %error, "listening for a Service's healthCheckNodePort; is the port taken?")
                }
            }
        }
    }
}

impl Check {
    fn response(&self, alive: bool) -> HealthResponse {
        let body = json!({
            "service": {"namespace": self.namespace, "name": self.name},
            "localEndpoints": self.local,
            "serviceProxyHealthy": alive,
        });
        let healthy = self.local > 0 && alive;
        HealthResponse { endpoints: Some(self.local), ..HealthResponse::json(healthy, &body) }
    }
}

#[cfg(test)]
mod tests {
    use testkit::metrics::{OF_COMPONENTS, assert_published};

    use super::*;

    #[test]
    fn health_depends_on_updates_and_node() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let health = Health::new(Duration::ZERO, Mode::Nftables, tasks);
        assert_eq!(health.healthz("/healthz").status, 503, "not yet synchronised");
        health.queued();
        let queued = health.begin();
        health.synced(Duration::from_millis(3), crate::sync::Report::default());
        assert_eq!(health.healthz("/healthz").status, 200);
        health.failed(queued);
        assert_eq!(
            (health.healthz("/healthz").status.as_u16(), health.healthz("/livez").status.as_u16()),
            (503, 503),
            "waits too long"
        );
        health.begin();
        health.node_leaves(true);
        assert_eq!(
            (health.healthz("/healthz").status.as_u16(), health.healthz("/livez").status.as_u16()),
            (503, 200)
        );
        assert!(health.metrics("/metrics").body.contains("nftables_sync_failures_total 1\n"));
    }

    #[test]
    fn serves_published_metrics_and_pages() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let configuration = json!({"kubeproxy.config.k8s.io": {"Mode": "nftables"}});
        let health = Health::new(Duration::ZERO, Mode::Nftables, tasks).configured(configuration);
        assert_published(&health.metrics("/metrics").body, OF_COMPONENTS);
        health.healthz("/livez");
        let slis = health.metrics("/metrics/slis").body;
        assert!(
            slis.contains("kubernetes_healthcheck{name=\"proxy\",type=\"livez\"} 0\n"),
            "{slis}"
        );
        let pages = ["/flagz", "/statusz"].map(|path| health.metrics(path).body);
        assert!(pages[0].starts_with("\nkube-proxy flagz\nWarning: "), "{}", pages[0]);
        assert!(pages[1].contains("\nEmulation version: 1.36\n"), "{}", pages[1]);
        let configuration = health.metrics("/configz").body;
        assert_eq!(configuration, "{\"kubeproxy.config.k8s.io\":{\"Mode\":\"nftables\"}}");
        assert_eq!(health.metrics("/flagz/../metrics").status, 404);
        let gates = FeatureGates::of_known([("ComponentFlagz", false)]);
        let health = health.with_features(gates);
        assert_eq!(health.metrics("/flagz").status, 404);
        assert_eq!(health.metrics("/statusz").status, 200);
        let page = health.metrics("/metrics").body;
        for line in [
            "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 0\n",
            "kubernetes_feature_enabled{name=\"ComponentStatusz\",stage=\"BETA\"} 1\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn health_names_panicked_informer() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let health = Health::new(Duration::from_secs(30), Mode::Nftables, tasks.clone());
        health.synced(Duration::ZERO, crate::sync::Report::default());
        assert_eq!(health.healthz("/livez").status, 200);
        tasks.keep("informer of services", || async { panic!("on purpose") });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let response = health.healthz("/healthz");
        assert_eq!(response.status, 503);
        let body = response.body;
        assert!(body.contains(r#""missing":["informer of services"]"#), "{body}");
        assert!(
            health.metrics("/metrics").body.contains("windlass_panics_total{worker=\"task\"} ")
        );
    }
}
