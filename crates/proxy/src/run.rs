use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use tokio::time::Instant;

use client::{Change, Client, Informer, ListOptions, Resource};
use net_core::{
    Cidr,
    api::{EndpointSlice, Node, Service, ServiceCidr, ServiceType, TrafficPolicy},
    endpoints::{Slices, is_proxied, local_ready},
};
use netlink::{Iptables, Net};
use tokio::sync::Notify;

use crate::{
    Mode, Settings, Syncer,
    health::{Check, Health, NodePortChecks, listen},
    sync::Report,
};

/// Why the proxy does not start.
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

/// What belongs to other proxies, or to none.
const OURS: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
const SERVICE_CIDRS: Resource =
    Resource::constant("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", false);

/// Runs the proxy until `tasks` shuts down. The rules stay when it ends.
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
    if settings.localhost_node_ports {
        route_localhost();
    }
    let health = Arc::new(Health::new(settings.sync_period, settings.mode, tasks.clone()));
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
    let watched = Watched::start(&settings, &client, tasks, &trigger);
    let checks = NodePortChecks::new(health.clone(), tasks.clone());
    let worker = Worker { settings, iptables, net, syncer: None, watched, trigger, health, checks };
    let _ = tasks.shutdown().unless_stopping(worker.run()).await;
    Ok(())
}

/// Lets what the node sends to its own 127.0.0.1 leave it; the rules drop what comes from elsewhere.
fn route_localhost() {
    let path = "/proc/sys/net/ipv4/conf/all/route_localnet";
    let is_set = std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
    if let Some(error) = (!is_set).then(|| std::fs::write(path, "1")).and_then(Result::err) {
        tracing::warn!(%error, "node ports will not answer on 127.0.0.1: setting {path}");
    }
}

struct Trigger {
    notify: Notify,
    health: Arc<Health>,
}

impl Trigger {
    /// A closure for an informer: anything that the projection shows counts.
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

struct Watched {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    cidrs: Informer<ServiceCidr>,
}

impl Watched {
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

    /// The ranges of Service addresses only make refusals more precise: they are not waited for.
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
    /// Away while a synchronisation runs on a thread for blocking work.
    syncer: Option<Syncer>,
    /// Where rules are written for it.
    iptables: Option<Iptables>,
    watched: Watched,
    trigger: Arc<Trigger>,
    health: Arc<Health>,
    checks: NodePortChecks,
}

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
                    tracing::error!(error = %chain(&*error), ?retry, "Service rules are not up to date");
                    self.health.failed(queued);
                    // What failed is to be tried again without a change.
                    self.trigger.notify.notify_one();
                    retry
                }
            };
            tokio::time::sleep(rest).await;
            let changed = self.trigger.notify.notified();
            // Without a change it is still looked whether the rules are there.
            let _ = tokio::time::timeout(self.settings.sync_period, changed).await;
        }
    }

    /// The proxy spends at most a tenth of its time on synchronising, and no change waits for longer than the
    /// configured period.
    fn rest_after(&self, took: Duration) -> Duration {
        (took * 10).clamp(
            Duration::from_millis(10),
            self.settings.min_sync_period.max(Duration::from_millis(10)),
        )
    }

    async fn sync(&mut self) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
        let node = self.watched.nodes.get(&self.settings.node);
        let leaves = node.as_ref().is_some_and(|node| node.is_leaving());
        self.health.node_leaves(leaves);
        let (services, slices) = (self.watched.services.list(), self.watched.slices.list());
        let cidrs = self.watched.service_cidrs();
        let mut syncer = self.syncer.take().unwrap_or_else(|| match self.iptables {
            None => Syncer::new(self.net.clone()),
            Some(programs) => Syncer::with_iptables(self.net.clone(), Arc::new(programs)),
        });
        let (settings, net) = (self.settings.clone(), self.net.clone());
        let work = move || {
            let result = (|| {
                let addresses =
                    if settings.needs_addresses() { net.addresses()? } else { Vec::new() };
                let config = settings.plan(node.as_deref(), &addresses, cidrs);
                syncer.check()?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
                    syncer.sync(&config, &services, &slices)?,
                )
            })();
            let checks = health_checks(&services, &slices, &settings.node);
            (syncer, result, checks)
        };
        let node = self.settings.node.clone();
        let work = move || rt::catch_sync("proxy", node, work);
        // A syncer that panicked is lost, and the next one looks at the whole table first.
        let (syncer, result, checks) = tokio::task::spawn_blocking(work).await??;
        self.syncer = Some(syncer);
        self.checks.set(checks).await;
        result
    }
}

/// Who listens on which `healthCheckNodePort`.
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

/// An error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::{FakeApi, Served};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_panics_keep_no_rule_from_being_written() {
        let (api, net) = (FakeApi::default(), Arc::new(netlink::Fake::new()));
        api.serve(Served {
            group: "networking.k8s.io",
            version: "v1",
            plural: "servicecidrs",
            kind: "ServiceCIDR",
            namespaced: false,
        });
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let (settings, _) =
            Settings::new(&api_config::KubeProxyConfiguration::new(), "n1").unwrap();
        let health = Arc::new(Health::new(settings.sync_period, Mode::Nftables, tasks.clone()));
        let trigger = Arc::new(Trigger { notify: Notify::new(), health: health.clone() });
        let watched = Watched::start(&settings, &api.client("proxy"), &tasks, &trigger);
        let worker = Worker {
            settings,
            iptables: None,
            net: net.clone(),
            syncer: None,
            watched,
            trigger,
            health: health.clone(),
            checks: NodePortChecks::new(health.clone(), tasks.clone()),
        };
        net.panic_nft(1000);
        tasks.spawn_until_shutdown("proxy", worker.run());
        api.create(&Resource::NODES, json!({"metadata": {"name": "n1"}})).await;
        let spec = json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ports": [{"port": 80, "protocol": "TCP"}]});
        let service = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": spec});
        api.create(&Resource::SERVICES, service).await;
        while net.nft_panics() > 0 {
            assert_eq!(health.healthz("/livez").0, 503, "no rule is written yet");
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        let written = async {
            while !net.take_log().iter().any(|transaction| transaction.contains("10.96.0.5")) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), written).await.unwrap();
        assert_eq!(health.healthz("/livez").0, 200);
        assert_eq!(rt::panics()["proxy"], 1000);
        tasks.drain(Duration::from_secs(5)).await;
    }
}
