//! This node's view of Services, endpoints, its Node and the Leases.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use api_meta::ObjectMeta;
use client::{Change, Client, Informer, ListOptions, Resource};
use net_core::{
    Cidr,
    api::{EndpointSlice, Node, Service, ServiceType, TrafficPolicy},
    endpoints::{Slices, local_ready},
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    links,
    plan::{Claim, FENCE, Plan, ServiceAddress, View, plan},
    settings::{SpeakerSettings, TICK},
    subject::{LABEL, Subject},
};

/// The label of nodes that serve no LoadBalancer Services.
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The label of k3s; another value than `true` excludes a node, too.
const ENABLE: &str = "svccontroller.k3s.cattle.io/enablelb";

/// The fields of a Lease that matter.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Lease {
    metadata: ObjectMeta,
    spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<String>,
}

/// The Leases as they have arrived.
#[derive(Default)]
struct Observed {
    claims: BTreeMap<IpAddr, Claim>,
    versions: BTreeMap<String, String>,
    heartbeats: BTreeMap<String, Instant>,
    wanted: BTreeMap<IpAddr, ServiceAddress>,
    /// The networks of this node's interfaces.
    networks: Vec<Cidr>,
    /// `true` if `wanted` must be computed again.
    stale: bool,
    renewed: Option<Instant>,
    steady_since: Option<Instant>,
}

/// This node's view, which informers keep up to date.
pub(super) struct State {
    settings: SpeakerSettings,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    observed: Arc<Mutex<Observed>>,
}

impl State {
    pub(super) fn start(settings: &SpeakerSettings, client: &Client, tasks: &rt::Tasks) -> Self {
        let observed = Arc::new(Mutex::new(Observed { stale: true, ..Observed::default() }));
        let ours = ListOptions {
            namespace: settings.namespace.clone(),
            ..ListOptions::labels(&format!("{}={}", LABEL.0, LABEL.1))
        };
        let everything = ListOptions::default;
        let (seen, seen_node, name) = (observed.clone(), observed.clone(), settings.node.clone());
        Self {
            services: Informer::start(
                client,
                Resource::SERVICES,
                everything(),
                tasks,
                mark(&observed),
            ),
            slices: Informer::start(
                client,
                Resource::ENDPOINT_SLICES,
                everything(),
                tasks,
                mark(&observed),
            ),
            nodes: Informer::start(
                client,
                Resource::NODES,
                everything(),
                tasks,
                move |change: Change<'_, Node>| {
                    let addresses = |node: Option<&Arc<Node>>| node.map(|node| node.addresses());
                    let is_own =
                        change.old.or(change.new).is_some_and(|n| *n.metadata.name == *name);
                    if is_own || addresses(change.old) != addresses(change.new) {
                        seen_node.lock().stale = true;
                    }
                },
            ),
            leases: Informer::start(client, Resource::LEASES, ours, tasks, move |change| {
                seen.lock().follow(change);
            }),
            settings: settings.clone(),
            observed,
        }
    }

    /// Waits until everything has been listed once.
    pub(super) async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
        self.leases.synced().await;
    }

    /// Waits until everything has been listed, and this node has renewed its Lease if it needs one.
    pub(super) async fn ready(&self) {
        self.synced().await;
        while self.is_needed() && self.observed.lock().renewed.is_none() {
            tokio::time::sleep(TICK).await;
        }
    }

    /// Reports whether this node needs a Lease: a Service has an address that the node may announce.
    pub(super) fn is_needed(&self) -> bool {
        let mut observed = self.observed.lock();
        self.refresh(&mut observed);
        !observed.claims.is_empty() || observed.wanted.values().any(|wanted| wanted.allowed)
    }

    /// Records a renewal of this node's Lease that began at a time.
    pub(super) fn renewed(&self, began: Instant) {
        let mut observed = self.observed.lock();
        let gap = observed.renewed.is_none_or(|last| began.duration_since(last) >= FENCE);
        observed.renewed = Some(began);
        if gap {
            observed.steady_since = Some(Instant::now());
        }
    }

    pub(super) fn plan(&self) -> Plan {
        let mut observed = self.observed.lock();
        self.refresh(&mut observed);
        plan(&View {
            node: &self.settings.node,
            now: Instant::now(),
            wanted: &observed.wanted,
            claims: &observed.claims,
            heartbeats: &observed.heartbeats,
            renewed: observed.renewed,
            steady_since: observed.steady_since,
        })
    }

    /// Sets the networks of this node's interfaces.
    pub(super) fn set_networks(&self, networks: Vec<Cidr>) {
        let mut observed = self.observed.lock();
        if observed.networks != networks {
            observed.networks = networks;
            observed.stale = true;
        }
    }

    /// Returns the version of a Lease that this node has seen.
    pub(super) fn version(&self, subject: &Subject) -> Option<String> {
        self.observed.lock().versions.get(&subject.name()).cloned()
    }

    /// Returns the addresses whose holder this node is.
    pub(super) fn held(&self) -> Vec<IpAddr> {
        let observed = self.observed.lock();
        let own = observed.claims.iter().filter(|(_, claim)| claim.holder == self.settings.node);
        own.map(|(address, _)| *address).collect()
    }

    /// Returns the addresses that no node may announce: those of Nodes and of the API.
    pub(super) fn reserved(&self) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.list();
        let addresses = nodes.iter().flat_map(|node| node.addresses());
        addresses.chain(self.settings.reserved.iter().copied()).collect()
    }

    /// Computes the wanted addresses again after a change.
    fn refresh(&self, observed: &mut Observed) {
        if !std::mem::replace(&mut observed.stale, false) {
            return;
        }
        let node = self.nodes.get(&self.settings.node);
        let usable = node.is_some_and(|node| is_usable(&node));
        let services = self.services.list();
        let slices = self.slices.list();
        let slices = Slices::index(slices.iter().map(AsRef::as_ref));
        let reserved = self.reserved();
        let mut wanted = BTreeMap::new();
        for service in &services {
            let serves = service.spec.external_traffic_policy == TrafficPolicy::Cluster
                || local_ready(&slices, service, &self.settings.node) > 0;
            let addresses = announced(service, &self.settings.ranges);
            for address in addresses.filter(|address| !reserved.contains(address)) {
                let reaches =
                    self.settings.beside.is_some() || links::is_within(&observed.networks, address);
                let since = observed.wanted.get(&address).map(|wanted| wanted.since);
                let since = since.unwrap_or_else(Instant::now);
                wanted.insert(
                    address,
                    ServiceAddress { allowed: usable && serves && reaches, since },
                );
            }
        }
        observed.wanted = wanted;
    }
}

/// Returns an informer's handler that has the wanted addresses computed again.
fn mark<P: PartialEq>(
    observed: &Arc<Mutex<Observed>>,
) -> impl Fn(Change<'_, P>) + Send + Sync + 'static {
    let observed = observed.clone();
    move |change| {
        if change.old != change.new {
            observed.lock().stale = true;
        }
    }
}

impl Observed {
    fn follow(&mut self, change: Change<'_, Lease>) {
        let Some(lease) = change.new else {
            let gone = change.old.and_then(|lease| {
                self.versions.remove(&lease.metadata.name);
                Subject::parse(&lease.metadata.name)
            });
            match gone {
                Some(Subject::Node(node)) => drop(self.heartbeats.remove(&node)),
                Some(Subject::Address(address)) => drop(self.claims.remove(&address)),
                None => {}
            }
            return;
        };
        let name = &lease.metadata.name;
        self.versions.insert(name.clone(), lease.metadata.resource_version.clone());
        let renewed = change.old.map(|old| &old.spec) != Some(&lease.spec);
        match Subject::parse(name) {
            Some(Subject::Node(node)) if renewed => {
                self.heartbeats.insert(node, Instant::now());
            }
            Some(Subject::Address(address)) => {
                let holder = lease.spec.holder_identity.clone().unwrap_or_default();
                let same = self.claims.get(&address).is_some_and(|claim| claim.holder == holder);
                if !same {
                    self.claims.insert(address, Claim { holder, changed: Instant::now() });
                }
            }
            _ => {}
        }
    }
}

/// Returns the Service's addresses that nodes announce.
fn announced(service: &Service, ranges: &[Cidr]) -> impl Iterator<Item = IpAddr> {
    let is_balanced = service.spec.kind == ServiceType::LoadBalancer;
    let ingress = service.status.load_balancer.ingress.iter().filter(move |_| is_balanced);
    let addresses = ingress.filter_map(|ingress| ingress.ip.parse::<IpAddr>().ok());
    addresses.filter(|address| links::is_within(ranges, *address))
}

fn is_usable(node: &Node) -> bool {
    let labels = &node.metadata.labels;
    !node.is_leaving()
        && !labels.contains_key(EXCLUDE)
        && labels.get(ENABLE).is_none_or(|value| value == "true")
}
