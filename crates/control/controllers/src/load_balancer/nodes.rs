//! Gives Services the nodes' own addresses. Each port of an address has one owner, as host ports do.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use api_meta::Family;

use super::model::{Decision, Shortage, Snapshot, families, is_local, requested, sort};
use crate::views::{Node, Service, is_true};

/// The label of nodes that serve LoadBalancer Services. As in k3s, nodes without it serve none once a node has it.
const ENABLE: &str = "svccontroller.k3s.cattle.io/enablelb";
/// The label that limits a Service to nodes with the same value, once a node has the label [`ENABLE`].
const POOL: &str = "svccontroller.k3s.cattle.io/lbpool";
/// The label of nodes that serve no LoadBalancer Services. It is upstream's.
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A port of an address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Endpoint {
    address: IpAddr,
    protocol: String,
    port: i32,
}

/// A node whose addresses may serve Services.
struct Candidate<'a> {
    node: &'a Node,
    addresses: Vec<IpAddr>,
}

/// The nodes that serve Services, and the ports that have an owner.
struct Ports<'a> {
    candidates: Vec<Candidate<'a>>,
    /// `true` if the labels of k3s select the nodes.
    selects: bool,
    taken: BTreeSet<Endpoint>,
}

pub(super) fn plan<'a>(
    snapshot: &Snapshot<'a>,
    services: &[&'a Service],
) -> Vec<(&'a Service, Decision)> {
    let mut ports = Ports::new(snapshot);
    let mut claimed: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    // Services keep their addresses before any of them gets a new one.
    for keeps in [true, false] {
        for service in services {
            let current = if keeps { snapshot.current(service) } else { Vec::new() };
            let claims = claimed.entry(service.metadata.key()).or_default();
            for address in ports.addresses(service) {
                let wanted = !keeps || current.contains(&address);
                if wanted && !claims.contains(&address) && ports.claim(service, address) {
                    claims.insert(address);
                }
            }
        }
    }
    let decide = |service: &&'a Service| {
        let claims = claimed.remove(&service.metadata.key()).unwrap_or_default();
        (*service, ports.decide(snapshot, service, &claims))
    };
    services.iter().map(decide).collect()
}

impl<'a> Ports<'a> {
    fn new(snapshot: &Snapshot<'a>) -> Self {
        let has = |node: &Node, label: &str| node.metadata.labels.contains_key(label);
        let selects = snapshot.nodes.iter().any(|node| has(node, ENABLE));
        let usable = snapshot.nodes.iter().copied().filter(|node| {
            let enabled = node.metadata.labels.get(ENABLE).is_some_and(|value| value == "true");
            is_true(&node.status.conditions, "Ready")
                && !node.metadata.terminating()
                && !has(node, EXCLUDE)
                && (enabled || !selects)
        });
        let candidates: Vec<_> = usable
            .map(|node| Candidate { node, addresses: node.status.internal_ips().collect() })
            .collect();
        let reserve = |socket: SocketAddr| Endpoint {
            address: socket.ip(),
            protocol: "TCP".to_owned(),
            port: socket.port().into(),
        };
        let kubelets = candidates.iter().flat_map(|candidate| {
            let port = candidate.node.status.daemon_endpoints.kubelet_endpoint.port;
            candidate.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
        });
        let taken = kubelets.chain(snapshot.api_servers.iter().copied()).map(reserve).collect();
        Self { candidates, selects, taken }
    }

    /// Returns the nodes that may serve a Service.
    fn nodes(&self, service: &Service) -> impl Iterator<Item = &Candidate<'a>> {
        let pool = service.metadata.labels.get(POOL);
        let pool = pool.filter(|pool| self.selects && !pool.is_empty()).cloned();
        self.candidates.iter().filter(move |candidate| {
            pool.is_none() || candidate.node.metadata.labels.get(POOL) == pool.as_ref()
        })
    }

    /// Returns the addresses that may serve a Service, also those whose ports have another owner.
    fn addresses(&self, service: &Service) -> Vec<IpAddr> {
        let (families, requested) = (families(service), requested(service));
        let all = self.nodes(service).flat_map(|candidate| candidate.addresses.iter().copied());
        all.filter(|ip| families.contains(&Family::of(*ip)))
            .filter(|ip| requested.is_none_or(|requested| requested == *ip))
            .collect()
    }

    /// Takes all ports of the Service on an address, or none.
    fn claim(&mut self, service: &Service, address: IpAddr) -> bool {
        let ports = service.spec.ports.iter().map(|port| Endpoint {
            address,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.port,
        });
        let endpoints: Vec<_> = ports.collect();
        let is_free = endpoints.iter().all(|endpoint| !self.taken.contains(endpoint));
        if is_free {
            self.taken.extend(endpoints);
        }
        is_free
    }

    fn decide(
        &self,
        snapshot: &Snapshot<'_>,
        service: &Service,
        claims: &BTreeSet<IpAddr>,
    ) -> Decision {
        let local = snapshot.local.get(&service.metadata.key());
        let serves = |node: &Node| {
            !is_local(service) || local.is_some_and(|names| names.contains(&node.metadata.name))
        };
        let serving = self.nodes(service).filter(|candidate| serves(candidate.node));
        let serving = serving.flat_map(|candidate| candidate.addresses.iter().copied());
        let mut addresses: Vec<_> = serving.filter(|ip| claims.contains(ip)).collect();
        sort(&mut addresses, &families(service));
        addresses.dedup();
        let shortage = || {
            if !claims.is_empty() {
                Shortage::NoEndpoint
            } else if !self.addresses(service).is_empty() {
                Shortage::PortsInUse
            } else {
                requested(service).map_or(Shortage::NoNode, Shortage::NotOfNode)
            }
        };
        let shortage = addresses.is_empty().then(shortage);
        Decision::Assign { addresses, shortage }
    }
}
