//! Follows Services and EndpointSlices and writes the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use client::{Change, Client, Informer, ListOptions, Resource};
use net_core::{
    Cidr,
    api::{EndpointSlice, Node, Service, ServiceCidr, ServiceType, TrafficPolicy},
    claims::{self, Host},
    endpoints::{Slices, is_proxied, local_ready},
};
use netlink::{Iptables, Net};
use tokio::sync::Notify;

use crate::{
    config::{Mode, Settings},
    conntrack::Conntrack,
    health::{Check, Health, NodePortChecks, listen},
    host::{ApiServers, Reporter, Sockets},
    sync::{Report, Syncer},
};

/// An error that prevents the start of the proxy.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("listening on {address} for {purpose}; choose another with {flag}")]
    Listen {
        address: SocketAddr,
        purpose: &'static str,
        flag: &'static str,
        source: std::io::Error,
    },
}

/// The label selector of the objects that this proxy handles. Others belong to other proxies or need none.
const OURS: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
const SERVICE_CIDRS: Resource =
    Resource::constant("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", false);

/// Runs the proxy until `tasks` shuts down. The rules stay afterwards.
pub async fn run(
    mut settings: Settings,
    client: Client,
    net: Arc<dyn Net>,
    tasks: &rt::Tasks,
) -> Result<(), RunError> {
    let iptables = Iptables::find().filter(|_| settings.mode == Mode::Iptables);
    if settings.mode == Mode::Iptables && iptables.is_none() {
        tracing::warn!(
            "iptables-restore is not installed: rules are written for nftables, with the same effect"
        );
        settings.mode = Mode::Nftables;
    }
    let health = Health::new(settings.sync_period, settings.mode, tasks.clone());
    let health =
        Arc::new(health.with_features(settings.features.clone()).configured(settings.configz()));
    let client = health.measured(client);
    let failed =
        |address, purpose, flag| move |source| RunError::Listen { address, purpose, flag, source };
    let shared = health.clone();
    listen("healthz", settings.healthz, tasks, move |path| shared.healthz(path))
        .await
        .map_err(failed(settings.healthz, "healthz", "--healthz-bind-address"))?;
    let shared = health.clone();
    listen("metrics", settings.metrics, tasks, move |path| shared.metrics(path))
        .await
        .map_err(failed(settings.metrics, "metrics", "--metrics-bind-address"))?;
    let trigger = Arc::new(Trigger { notify: Notify::new(), health: health.clone() });
    let watched = Informers::start(&settings, &client, tasks, &trigger);
    let checks = NodePortChecks::new(health.clone(), tasks.clone());
    let facts = Facts::new(&settings, client, tasks);
    let route_loopback = settings.localhost_node_ports.then_some(route_localhost as fn());
    let worker = Worker {
        conntrack: Some(settings.conntrack.clone()),
        settings,
        iptables,
        net,
        syncer: None,
        watched,
        facts,
        route_loopback,
        trigger,
        health,
        checks,
    };
    let _ = tasks.shutdown().unless_stopping(worker.run()).await;
    Ok(())
}

/// The sysctl that makes 127.0.0.0/8 routable.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Lets packets that the node sends to its own 127.0.0.1 leave it. Only rules prevent neighbours on the link from
/// reaching programs that listen there (CVE-2020-8558), so the rules must be installed first.
fn route_localhost() {
    let is_set = std::fs::read_to_string(ROUTE_LOCALNET).is_ok_and(|value| value.trim() == "1");
    let written = (!is_set).then(|| std::fs::write(ROUTE_LOCALNET, "1"));
    if let Some(error) = written.and_then(Result::err) {
        tracing::warn!(%error, "node ports will not answer on 127.0.0.1: setting {ROUTE_LOCALNET}");
    }
}

/// Reverts [`route_localhost`] when the rules that protect loopback addresses are removed.
pub fn unroute_localhost() {
    if let Err(error) = std::fs::write(ROUTE_LOCALNET, "0") {
        tracing::warn!(%error, "neighbours may reach programs on 127.0.0.1: resetting {ROUTE_LOCALNET}");
    }
}

struct Trigger {
    notify: Notify,
    health: Arc<Health>,
}

impl Trigger {
    /// Returns an informer's handler that triggers on every change of the decoded fields.
    fn on_change<P: PartialEq>(self: &Arc<Self>) -> impl Fn(Change<'_, P>) + Send + Sync + 'static {
        let trigger = self.clone();
        move |change| {
            if change.old != change.new {
                trigger.health.queued();
                trigger.notify.notify_one();
            }
        }
    }
}

struct Informers {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    cidrs: Informer<ServiceCidr>,
}

impl Informers {
    fn start(
        settings: &Settings,
        client: &Client,
        tasks: &rt::Tasks,
        trigger: &Arc<Trigger>,
    ) -> Self {
        let own = ListOptions::fields(&format!("metadata.name={}", settings.node));
        let ours = || ListOptions::labels(OURS);
        Self {
            services: Informer::start(
                client,
                Resource::SERVICES,
                ours(),
                tasks,
                trigger.on_change(),
            ),
            slices: Informer::start(
                client,
                Resource::ENDPOINT_SLICES,
                ours(),
                tasks,
                trigger.on_change(),
            ),
            nodes: Informer::start(client, Resource::NODES, own, tasks, trigger.on_change()),
            cidrs: Informer::start(
                client,
                SERVICE_CIDRS,
                ListOptions::default(),
                tasks,
                trigger.on_change(),
            ),
        }
    }

    /// Waits for the informers. Service CIDRs are not needed, because they only make rejections more precise.
    async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
    }

    fn service_cidrs(&self) -> Vec<Cidr> {
        let objects = self.cidrs.list();
        let mut cidrs: Vec<Cidr> = objects
            .iter()
            .flat_map(|object| &object.spec.cidrs)
            .filter_map(|text| text.parse().ok())
            .collect();
        cidrs.sort();
        cidrs.dedup();
        cidrs
    }
}

struct Worker {
    settings: Settings,
    net: Arc<dyn Net>,
    /// `None` while a synchronization runs on a blocking thread.
    syncer: Option<Syncer>,
    /// The iptables programs, if rules are written for them.
    iptables: Option<Iptables>,
    watched: Informers,
    facts: Facts,
    /// The kernel's settings until they are written.
    conntrack: Option<Conntrack>,
    /// Called when rules protect loopback addresses.
    route_loopback: Option<fn()>,
    trigger: Arc<Trigger>,
    health: Arc<Health>,
    checks: NodePortChecks,
}

/// The facts about hosts for checking claims of Services.
struct Facts {
    /// `None` while a synchronization runs.
    sockets: Option<Sockets>,
    api_servers: ApiServers,
    reporter: Reporter,
    /// All nodes. They are watched only when a Service claims addresses, because they are many in a large cluster.
    nodes: Option<Informer<Node>>,
    client: Client,
    tasks: rt::Tasks,
}

/// The longest wait for the first list of all nodes.
const NODES: Duration = Duration::from_secs(10);

impl Facts {
    fn new(settings: &Settings, client: Client, tasks: &rt::Tasks) -> Self {
        Self {
            sockets: Some(Sockets::default()),
            api_servers: ApiServers::of(settings.kubeconfig.as_deref()),
            reporter: Reporter::start(&client, &settings.node, tasks),
            nodes: None,
            client,
            tasks: tasks.clone(),
        }
    }

    /// Returns the addresses of all nodes; empty if no Service claims an address.
    async fn cluster(
        &mut self,
        services: &[Arc<Service>],
        trigger: &Arc<Trigger>,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        if self.nodes.is_none() && !services.iter().any(|service| claims::has_addresses(service)) {
            return Ok(BTreeSet::new());
        }
        let nodes = self.nodes.get_or_insert_with(|| {
            let all = ListOptions::default();
            Informer::start(&self.client, Resource::NODES, all, &self.tasks, trigger.on_change())
        });
        let synced = tokio::time::timeout(NODES, nodes.synced()).await;
        synced.map_err(|_| {
            "a Service has external addresses, but listing all nodes takes too long; may kube-proxy list nodes?"
        })?;
        Ok(nodes.list().iter().flat_map(|node| node.addresses()).collect())
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Worker {
    async fn run(mut self) {
        self.watched.synced().await;
        let mut backoff = rt::Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        loop {
            let queued = self.health.begin();
            let start = Instant::now();
            let synced = rt::catch("proxy", "Service rules", self.sync()).await;
            let rest = match synced.unwrap_or_else(|panicked| Err(panicked.into())) {
                Ok(report) => {
                    backoff.reset();
                    self.health.synced(start.elapsed(), report);
                    if report != Report::default() {
                        tracing::debug!(?report, took = ?start.elapsed(), "Service rules are up to date");
                    }
                    self.rest_after(start.elapsed())
                }
                Err(error) => {
                    let retry = backoff.next(0.0);
                    tracing::error!(error = %rt::with_causes(&*error), ?retry, "Service rules are not up to date");
                    self.health.failed(queued);
                    // Retry without waiting for a change.
                    self.trigger.notify.notify_one();
                    retry
                }
            };
            tokio::time::sleep(rest).await;
            let changed = self.trigger.notify.notified();
            // Without a change, check whether the rules are still installed.
            let _ = tokio::time::timeout(self.settings.sync_period, changed).await;
        }
    }

    /// Returns the pause after a synchronization. The proxy synchronizes for at most a tenth of the time, and no change
    /// waits longer than the configured period.
    fn rest_after(&self, took: Duration) -> Duration {
        (took * 10).clamp(
            Duration::from_millis(10),
            self.settings.min_sync_period.max(Duration::from_millis(10)),
        )
    }

    async fn sync(&mut self) -> Result<Report, Failure> {
        let node = self.watched.nodes.get(&self.settings.node);
        let leaves = node.as_ref().is_some_and(|node| node.is_leaving());
        self.health.node_leaves(leaves);
        let (services, slices) = (self.watched.services.list(), self.watched.slices.list());
        let cidrs = self.watched.service_cidrs();
        let cluster = self.facts.cluster(&services, &self.trigger).await?;
        let api_servers = self.facts.api_servers.addresses().await;
        // After a panic the state is lost, and collecting starts again.
        let mut sockets = self.facts.sockets.take().unwrap_or_default();
        let mut syncer = self.syncer.take().unwrap_or_else(|| match self.iptables {
            None => Syncer::new(self.net.clone()),
            Some(programs) => Syncer::with_iptables(self.net.clone(), Arc::new(programs)),
        });
        let (settings, net) = (self.settings.clone(), self.net.clone());
        let (route_loopback, conntrack) = (self.route_loopback, self.conntrack.clone());
        let work = move || {
            let result = (|| {
                let addresses =
                    if settings.needs_addresses() { net.addresses()? } else { Vec::new() };
                let mut config = settings.plan(node.as_deref(), &addresses, cidrs);
                let now = Instant::now();
                let host = sockets.observe(&*net, &services, node.as_deref(), now)?;
                config.host = Host { api_servers, cluster, ..host };
                syncer.check()?;
                let report = syncer.sync(&config, &services, &slices)?;
                if let Some(route) = route_loopback.filter(|_| syncer.guards_loopback()) {
                    route();
                }
                if let Some(conntrack) = conntrack {
                    conntrack.write(Path::new("/"));
                }
                Ok::<_, Failure>(report)
            })();
            let checks = health_checks(&services, &slices, &settings.node);
            (syncer, sockets, result, checks)
        };
        let node = self.settings.node.clone();
        let work = move || rt::catch_sync("proxy", node, work);
        // After a panic the syncer is lost; the next one reads the whole table first.
        let (syncer, sockets, result, checks) = tokio::task::spawn_blocking(work).await??;
        self.facts.reporter.report(syncer.refusals()).await;
        self.facts.sockets = Some(sockets);
        self.syncer = Some(syncer);
        self.checks.set(checks).await;
        if result.is_ok() {
            self.conntrack = None;
        }
        result
    }
}

/// Returns the Service for each `healthCheckNodePort`.
fn health_checks(
    services: &[Arc<Service>],
    slices: &[Arc<EndpointSlice>],
    node: &str,
) -> BTreeMap<u16, Check> {
    let is_checked = |service: &&Arc<Service>| {
        let spec = &service.spec;
        is_proxied(service)
            && spec.kind == ServiceType::LoadBalancer
            && spec.external_traffic_policy == TrafficPolicy::Local
            && spec.health_check_node_port != 0
    };
    let mut services = services.iter().filter(is_checked).peekable();
    if services.peek().is_none() {
        return BTreeMap::new();
    }
    let slices = Slices::index(slices.iter().map(AsRef::as_ref));
    let check = |service: &Arc<Service>| Check {
        namespace: service.metadata.namespace.clone(),
        name: service.metadata.name.clone(),
        local: local_ready(&slices, service, node),
    };
    services.map(|service| (service.spec.health_check_node_port, check(service))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::{FakeApi, ServedResource};

    use super::*;

    /// Starts a proxy on an in-memory network, and returns its health.
    fn start(api: &FakeApi, net: &Arc<netlink::Fake>, tasks: &rt::Tasks) -> Arc<Health> {
        api.serve(ServedResource {
            group: "networking.k8s.io",
            version: "v1",
            plural: "servicecidrs",
            kind: "ServiceCIDR",
            namespaced: false,
        });
        let (settings, _) =
            Settings::new(&api_config::KubeProxyConfiguration::new(), "n1").unwrap();
        let health = Arc::new(Health::new(settings.sync_period, Mode::Nftables, tasks.clone()));
        let trigger = Arc::new(Trigger { notify: Notify::new(), health: health.clone() });
        let client = api.client("proxy");
        let watched = Informers::start(&settings, &client, tasks, &trigger);
        let worker = Worker {
            iptables: None,
            net: net.clone(),
            syncer: None,
            watched,
            facts: Facts::new(&settings, client, tasks),
            settings,
            conntrack: None,
            route_loopback: None,
            trigger,
            health: health.clone(),
            checks: NodePortChecks::new(health.clone(), tasks.clone()),
        };
        tasks.spawn_until_shutdown("proxy", worker.run());
        health
    }

    #[tokio::test(start_paused = true)]
    async fn records_event_for_refused_claim() {
        let (api, net) = (FakeApi::default(), Arc::new(netlink::Fake::new()));
        net.set_listeners(&[(net_core::api::Protocol::Tcp, "0.0.0.0:2379".parse().unwrap())]);
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        start(&api, &net, &tasks);
        let address = json!({"type": "InternalIP", "address": "192.0.2.1"});
        let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": [address]}});
        api.create(&Resource::NODES, node).await;
        let ports = json!([{"name": "a", "port": 2379, "protocol": "TCP"}, {"name": "b", "port": 443, "protocol": "TCP"}]);
        let spec = json!({"clusterIP": "10.96.0.5", "externalIPs": ["192.0.2.1"], "ports": ports});
        let service = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": spec});
        api.create(&Resource::SERVICES, service).await;
        let events = |api: &FakeApi| api.list(&Resource::EVENTS, "default");
        api.until("an Event", |api| !events(api).is_empty()).await;
        let event = &events(&api)[0];
        assert_eq!((&event["reason"], &event["type"]), (&json!("AddressInUse"), &json!("Warning")));
        assert_eq!(
            event["message"],
            "externalIPs 192.0.2.1, port 2379/TCP is not served on this node: a program of this node listens there"
        );
        let involved = &event["involvedObject"];
        assert_eq!((&involved["kind"], &involved["name"]), (&json!("Service"), &json!("s")));
        assert!(involved["uid"].is_string(), "kubectl describe looks for it: {involved}");
        let written = net.take_log().concat();
        assert!(written.contains("192.0.2.1 . tcp . 443"), "{written}");
        assert!(!written.contains("192.0.2.1 . tcp . 2379"), "{written}");
        tasks.drain(Duration::from_secs(5)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn writes_rules_despite_thousand_panics() {
        let (api, net) = (FakeApi::default(), Arc::new(netlink::Fake::new()));
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        net.panic_nft(1000);
        let health = start(&api, &net, &tasks);
        api.create(&Resource::NODES, json!({"metadata": {"name": "n1"}})).await;
        let spec = json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ports": [{"port": 80, "protocol": "TCP"}]});
        let service = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": spec});
        api.create(&Resource::SERVICES, service).await;
        while net.nft_panics() > 0 {
            assert_eq!(health.healthz("/livez").status, 503, "no rule is written yet");
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        let written = async {
            while !net.take_log().iter().any(|transaction| transaction.contains("10.96.0.5")) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), written).await.unwrap();
        assert_eq!(health.healthz("/livez").status, 200);
        assert_eq!(rt::panics()["proxy"], 1000);
        tasks.drain(Duration::from_secs(5)).await;
    }
}
