//! Addresses and ports that no Service may take from the node or the cluster (CVE-2020-8554).
//!
//! The author of a Service chooses its external addresses and, within the cluster's range, its node ports. A rule that
//! rewrites such a destination applies before any program of the host sees the packet. So a Service could take the API
//! server's address, the kubelet's port or another Service's cluster IP. [`Claims`] decides which of these claims a
//! node serves, for nftables, iptables and conntrack alike.
//!
//! - No Service gets an API server's endpoint, a special address ([`api_meta::special`]) or another cluster IP.
//! - An address of this node is served on the ports on which no program of the host listens.
//! - An address of another node is left to that node, which knows the ports of its own programs.
//! - Any other address is served, as upstream's proxy does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api_meta::special;

use crate::{
    Family,
    api::{Node, Protocol, Service, ServicePort},
    endpoints::{
        Slices, balancer_addresses, cluster_ips, external_addresses, is_proxied, pairs_per_port,
    },
};

/// The kubelet's port if the Node does not report one.
const KUBELET_PORT: u16 = 10250;

/// The largest number of pairs of a Service's ports with its addresses and endpoints that a node serves, and of all
/// Services of a namespace. A small object can have millions, and each pair is at least one rule.
const MAX_PAIRS: usize = 1 << 16;
const MAX_NAMESPACE_PAIRS: usize = 1 << 17;

/// The number of refusals of a Service that are reported, and of Services of a namespace that has too many pairs. Each
/// one is an Event, and a small object can have thousands.
const MAX_REFUSALS: usize = 16;

/// The facts about this node and the cluster for checking claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The API server addresses in this node's configuration, besides the endpoints of `default/kubernetes`.
    pub api_servers: BTreeSet<SocketAddr>,
    /// This node's addresses in the API.
    pub node: BTreeSet<IpAddr>,
    /// The addresses of this node's interfaces.
    pub interfaces: BTreeSet<IpAddr>,
    /// The addresses of all nodes in the API.
    pub cluster: BTreeSet<IpAddr>,
    /// The ports of the host's programs.
    pub listeners: Listeners,
}

impl Host {
    fn is_own(&self, ip: IpAddr) -> bool {
        self.node.contains(&ip) || self.interfaces.contains(&ip)
    }
}

/// The ports on which programs of the host listen, with the local addresses. An unspecified address means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners(BTreeMap<(Protocol, u16), BTreeSet<IpAddr>>);

impl Listeners {
    /// Adds one socket.
    pub fn add(&mut self, protocol: Protocol, socket: SocketAddr) {
        let addresses = self.0.entry((protocol, socket.port())).or_default();
        addresses.insert(socket.ip().to_canonical());
    }

    /// Adds the kubelet's port on all addresses. It is reserved even while the kubelet is not running.
    pub fn add_kubelet(&mut self, node: Option<&Node>) {
        let port = node.map_or(0, |node| node.status.daemon_endpoints.kubelet_endpoint.port);
        let port = if port == 0 { KUBELET_PORT } else { port };
        self.add(Protocol::Tcp, (std::net::Ipv6Addr::UNSPECIFIED, port).into());
    }

    /// Reports whether a program listens on this port of any address.
    fn has_port(&self, protocol: Protocol, port: u16) -> bool {
        self.0.contains_key(&(protocol, port))
    }

    /// Reports whether a program listens on exactly this address.
    fn has(&self, protocol: Protocol, ip: IpAddr, port: u16) -> bool {
        self.0.get(&(protocol, port)).is_some_and(|addresses| addresses.contains(&ip))
    }

    /// Reports whether a program listens on all addresses of `ip`'s family. An IPv6 socket also accepts IPv4.
    fn has_any(&self, protocol: Protocol, ip: IpAddr, port: u16) -> bool {
        let Some(addresses) = self.0.get(&(protocol, port)) else { return false };
        let mut unspecified = addresses.iter().filter(|address| address.is_unspecified());
        unspecified.any(|address| address.is_ipv6() || ip.is_ipv4())
    }
}

impl Extend<(Protocol, SocketAddr)> for Listeners {
    fn extend<T: IntoIterator<Item = (Protocol, SocketAddr)>>(&mut self, sockets: T) {
        sockets.into_iter().for_each(|(protocol, socket)| self.add(protocol, socket));
    }
}

/// The reason why a node does not serve a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A loopback, link-local, multicast, unspecified or IPv4-mapped address.
    Special,
    /// An address of an API server.
    ApiServer,
    /// The cluster IP of a Service.
    ClusterIp,
    /// A socket of a program on this node.
    Host,
    /// An address of another node, which decides about it. The claim is valid.
    OtherNode,
    /// A Service or namespace with too many pairs of ports with addresses and endpoints.
    Pairs,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Special => {
                "it is a loopback, link-local, multicast, unspecified or IPv4-mapped address"
            }
            Reason::ApiServer => "an API server of this cluster answers there",
            Reason::ClusterIp => "it is the cluster IP of a Service",
            Reason::Host => "a program of this node listens there",
            Reason::OtherNode => "it is an address of another node",
            Reason::Pairs => {
                "a node serves at most 65536 pairs of a Service's ports with its addresses and endpoints, and 131072 \
                 of all Services of a namespace; split the Service, or use more namespaces"
            }
        })
    }
}

/// A claim that this node does not serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The namespace of the Service.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub service: Arc<str>,
    /// The field and its value, such as `externalIPs 192.0.2.1, port 6443/TCP`.
    pub claim: String,
    /// The reason.
    pub reason: Reason,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not served on this node: {}", self.claim, self.reason)
    }
}

/// The claims of all Services that a node does not serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    addresses: BTreeSet<(IpAddr, Protocol, u16)>,
    node_ports: BTreeSet<(Family, Protocol, u16)>,
    /// The number of served ports of the Services that have more, by namespace and name.
    served: BTreeMap<(Arc<str>, Arc<str>), usize>,
    /// The refused claims to report to the authors of Services, in order.
    pub refusals: BTreeSet<Refusal>,
}

/// Reports whether a Service has external addresses or node ports, which requires the facts in [`Host`].
pub fn has_claims(service: &Service) -> bool {
    let has_node_port = || service.spec.ports.iter().any(|port| port.node_port != 0);
    has_addresses(service) || (is_proxied(service) && has_node_port())
}

/// Reports whether a Service has external addresses, which requires the addresses of other nodes.
pub fn has_addresses(service: &Service) -> bool {
    is_proxied(service) && external_addresses(service).next().is_some()
}

impl Claims {
    /// Checks the claims of all Services that a proxy serves.
    pub fn judge<'a>(
        host: &Host,
        services: impl Iterator<Item = &'a Service> + Clone,
        slices: &Slices<'_>,
    ) -> Self {
        let claiming: Vec<_> = services.clone().filter(|service| has_claims(service)).collect();
        let mut claims = Self::default();
        let proxied = services.clone().filter(|service| is_proxied(service));
        claims.limit_ports(proxied.collect(), slices);
        if claiming.is_empty() {
            return claims;
        }
        let cluster_ips = services.filter(|service| is_proxied(service)).flat_map(cluster_ips);
        let mut judge = Judge {
            host,
            api_servers: host.api_servers.clone(),
            cluster_ips: cluster_ips.collect(),
        };
        judge.add_endpoints(slices);
        claiming.into_iter().for_each(|service| claims.add(&judge, service));
        claims
    }

    /// Determines the ports that a node serves. If a namespace has too many pairs, the first Services by name win.
    fn limit_ports(&mut self, mut services: Vec<&Service>, slices: &Slices<'_>) {
        services.sort_by_key(|service| (&service.metadata.namespace, &service.metadata.name));
        for of_namespace in services.chunk_by(|a, b| a.metadata.namespace == b.metadata.namespace) {
            let (mut left, mut reported) = (MAX_NAMESPACE_PAIRS, 0);
            for service in of_namespace {
                let (ports, pairs) = (&service.spec.ports, pairs_per_port(service, slices));
                let most = if left == 0 { 0 } else { (left.min(MAX_PAIRS) / pairs).max(1) };
                let served = ports.len().min(most);
                left = left.saturating_sub(served * pairs);
                let Some(port) = ports.get(served) else { continue };
                let meta = &service.metadata;
                self.served.insert((meta.namespace.clone(), meta.name.clone()), served);
                if reported < MAX_REFUSALS {
                    reported += 1;
                    let unserved = ports.len() - served;
                    let claim =
                        format!("the range of the last {unserved} ports, from {}", port.port);
                    self.reject(service, claim, port.protocol, Reason::Pairs);
                }
            }
        }
    }

    /// Returns the ports of a Service that a node serves.
    pub(crate) fn served_ports<'s>(&self, service: &'s Service) -> &'s [ServicePort] {
        let (meta, ports) = (&service.metadata, &service.spec.ports);
        let served = self.served.get(&(meta.namespace.clone(), meta.name.clone()));
        &ports[..served.copied().unwrap_or(usize::MAX).min(ports.len())]
    }

    fn add(&mut self, judge: &Judge<'_>, service: &Service) {
        let spec = &service.spec;
        let external = spec.external_ips.iter().filter_map(|text| text.parse().ok());
        let external = external.map(|ip| (ip, Origin::Author));
        let balancer = balancer_addresses(service).map(|ip| (ip, Origin::Balancer));
        let addresses: Vec<(IpAddr, Origin)> = external.chain(balancer).collect();
        for port in self.served_ports(service) {
            for (ip, origin) in &addresses {
                if let Some(reason) = judge.conflict(*ip, *origin, port.protocol, port.port) {
                    self.addresses.insert((*ip, port.protocol, port.port));
                    let claim = format!("{} {ip}, port {}", origin.field(), port.port);
                    self.reject(service, claim, port.protocol, reason);
                }
            }
            for family in Family::ALL.into_iter().filter(|_| port.node_port != 0) {
                if let Some(reason) = judge.node_port_conflict(port.protocol, port.node_port) {
                    self.node_ports.insert((family, port.protocol, port.node_port));
                    let claim = format!("node port {}", port.node_port);
                    self.reject(service, claim, port.protocol, reason);
                }
            }
        }
    }

    fn reject(&mut self, service: &Service, claim: String, protocol: Protocol, reason: Reason) {
        if reason == Reason::OtherNode {
            return;
        }
        let refusal = |claim| Refusal {
            namespace: service.metadata.namespace.clone(),
            service: service.metadata.name.clone(),
            claim,
            reason,
        };
        let first = refusal(String::new());
        let known = self.refusals.range(&first..).take_while(|known| {
            (&known.namespace, &known.service) == (&first.namespace, &first.service)
        });
        if known.count() < MAX_REFUSALS {
            let claim = format!("{claim}/{}", protocol.lower().to_uppercase());
            self.refusals.insert(refusal(claim));
        }
    }

    /// Reports whether a Service may answer at an external address.
    pub(crate) fn allow(&self, ip: IpAddr, protocol: Protocol, port: u16) -> bool {
        !self.addresses.contains(&(ip, protocol, port))
    }

    /// Reports whether a Service may answer at a node port.
    pub(crate) fn allow_node_port(&self, family: Family, protocol: Protocol, port: u16) -> bool {
        !self.node_ports.contains(&(family, protocol, port))
    }
}

/// The source of an address. A load balancer's controller is trusted more than the author of a Service.
#[derive(Clone, Copy)]
enum Origin {
    Author,
    Balancer,
}

impl Origin {
    fn field(self) -> &'static str {
        match self {
            Origin::Author => "externalIPs",
            Origin::Balancer => "load balancer address",
        }
    }
}

struct Judge<'a> {
    host: &'a Host,
    api_servers: BTreeSet<SocketAddr>,
    cluster_ips: BTreeSet<IpAddr>,
}

impl Judge<'_> {
    /// Adds the endpoints of `default/kubernetes`, which the API servers maintain.
    fn add_endpoints(&mut self, slices: &Slices<'_>) {
        for slice in slices.by_name("default", "kubernetes") {
            let ips = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            let ips: Vec<IpAddr> = ips.filter_map(|text| text.parse().ok()).collect();
            for port in slice.ports.iter().filter_map(|port| port.port) {
                self.api_servers.extend(ips.iter().map(|ip| SocketAddr::new(*ip, port)));
            }
        }
    }

    fn conflict(
        &self,
        ip: IpAddr,
        origin: Origin,
        protocol: Protocol,
        port: u16,
    ) -> Option<Reason> {
        let host = self.host;
        if special(ip).is_some() || ip.to_canonical() != ip {
            return Some(Reason::Special);
        }
        if protocol == Protocol::Tcp && self.api_servers.contains(&SocketAddr::new(ip, port)) {
            return Some(Reason::ApiServer);
        }
        if self.cluster_ips.contains(&ip) {
            return Some(Reason::ClusterIp);
        }
        // A load balancer controller may put its address on an interface of the chosen node. Programs that listen on
        // all addresses do not intend to serve it.
        let own = match origin {
            Origin::Author => host.is_own(ip),
            Origin::Balancer => host.node.contains(&ip),
        };
        let listened = host.listeners.has(protocol, ip, port)
            || (own && host.listeners.has_any(protocol, ip, port));
        if listened {
            return Some(Reason::Host);
        }
        let is_other_node = host.cluster.contains(&ip) && !host.is_own(ip);
        is_other_node.then_some(Reason::OtherNode)
    }

    /// A node port applies to all addresses, including loopback, so a listener on any of them keeps the port.
    fn node_port_conflict(&self, protocol: Protocol, port: u16) -> Option<Reason> {
        let mut servers = self.api_servers.iter().filter(|server| server.port() == port);
        if protocol == Protocol::Tcp && servers.any(|server| self.host.is_own(server.ip())) {
            return Some(Reason::ApiServer);
        }
        self.host.listeners.has_port(protocol, port).then_some(Reason::Host)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::EndpointSlice;

    fn service(spec: Value, ingress: Value) -> Service {
        serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "tenant"}, "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}}}),
        )
        .unwrap()
    }

    fn host() -> Host {
        let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut host = Host {
            api_servers: ["192.0.2.100:6443".parse().unwrap()].into(),
            node: ips(&["192.0.2.1", "fd00::1"]),
            interfaces: ips(&["192.0.2.1", "fd00::1", "198.51.100.1", "127.0.0.1", "10.1.0.1"]),
            cluster: ips(&["192.0.2.1", "fd00::1", "192.0.2.2"]),
            listeners: Listeners::default(),
        };
        host.listeners.add_kubelet(None);
        for (protocol, socket) in [
            (Protocol::Tcp, "0.0.0.0:22"),
            (Protocol::Tcp, "[::]:10256"),
            (Protocol::Tcp, "192.0.2.1:2380"),
            (Protocol::Tcp, "127.0.0.1:10248"),
            (Protocol::Udp, "[::]:4789"),
            (Protocol::Tcp, "127.0.0.1:30099"),
        ] {
            host.listeners.add(protocol, socket.parse().unwrap());
        }
        host
    }

    fn api_endpoints() -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}],
            "endpoints": [{"addresses": ["192.0.2.7"]}],
        }))
        .unwrap()
    }

    fn kubernetes() -> Service {
        serde_json::from_value(json!({"metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}}))
        .unwrap()
    }

    fn claims_of(service: &Service) -> Claims {
        let (kubernetes, slice) = (kubernetes(), api_endpoints());
        Claims::judge(&host(), [service, &kubernetes].into_iter(), &Slices::index([&slice]))
    }

    /// CVE-2020-8554.
    #[test]
    fn cve_2020_8554_refuses_sockets_of_the_node_and_the_api() {
        let tcp = Protocol::Tcp;
        for (ip, protocol, port, author, balancer) in [
            ("192.0.2.100", tcp, 6443, Some(Reason::ApiServer), Some(Reason::ApiServer)),
            ("192.0.2.100", tcp, 6444, None, None),
            ("192.0.2.7", tcp, 6443, Some(Reason::ApiServer), Some(Reason::ApiServer)),
            ("10.96.0.1", tcp, 443, Some(Reason::ClusterIp), Some(Reason::ClusterIp)),
            ("10.96.0.1", tcp, 8443, Some(Reason::ClusterIp), Some(Reason::ClusterIp)),
            ("192.0.2.1", tcp, 10250, Some(Reason::Host), Some(Reason::Host)),
            ("fd00::1", tcp, 10250, Some(Reason::Host), Some(Reason::Host)),
            ("192.0.2.1", tcp, 22, Some(Reason::Host), Some(Reason::Host)),
            ("198.51.100.1", tcp, 22, Some(Reason::Host), None),
            ("fd00::1", tcp, 22, None, None),
            ("192.0.2.1", tcp, 10256, Some(Reason::Host), Some(Reason::Host)),
            ("192.0.2.1", tcp, 2380, Some(Reason::Host), Some(Reason::Host)),
            ("192.0.2.1", tcp, 10248, None, None),
            ("192.0.2.1", tcp, 443, None, None),
            ("192.0.2.1", Protocol::Udp, 4789, Some(Reason::Host), Some(Reason::Host)),
            ("192.0.2.1", tcp, 4789, None, None),
            ("192.0.2.2", tcp, 443, Some(Reason::OtherNode), Some(Reason::OtherNode)),
            ("127.0.0.1", tcp, 443, Some(Reason::Special), Some(Reason::Special)),
            ("::ffff:192.0.2.1", tcp, 443, Some(Reason::Special), Some(Reason::Special)),
            ("169.254.169.254", tcp, 80, Some(Reason::Special), Some(Reason::Special)),
            ("203.0.113.5", tcp, 10250, None, None),
        ] {
            let ports = json!([{"port": port, "protocol": protocol.lower().to_uppercase()}]);
            let own = json!({"clusterIP": "10.96.0.9", "externalIPs": [ip], "ports": ports});
            let given = json!({"clusterIP": "10.96.0.9", "type": "LoadBalancer", "ports": ports});
            for (expected, service) in
                [(author, service(own, json!([]))), (balancer, service(given, json!([{"ip": ip}])))]
            {
                let claims = claims_of(&service);
                let allowed = claims.allow(ip.parse().unwrap(), protocol, port);
                assert_eq!(allowed, expected.is_none(), "{ip}:{port}");
                let refused = claims.refusals.first().map(|refusal| refusal.reason);
                assert_eq!(refused, expected.filter(|r| *r != Reason::OtherNode), "{ip}:{port}");
            }
        }
    }

    #[test]
    fn refuses_node_ports_that_the_host_uses() {
        for (protocol, port, allowed) in [
            ("TCP", 30_080, true),
            ("TCP", 10250, false),
            ("UDP", 10250, true),
            ("UDP", 4789, false),
            // The API server of another machine does not block the port.
            ("TCP", 6443, true),
            ("TCP", 30_099, false),
        ] {
            let ports = json!([{"port": 80, "protocol": protocol, "nodePort": port}]);
            let claims = claims_of(&service(
                json!({"clusterIP": "10.96.0.9", "type": "NodePort", "ports": ports}),
                json!([]),
            ));
            let protocol = if protocol == "TCP" { Protocol::Tcp } else { Protocol::Udp };
            assert_eq!(claims.allow_node_port(Family::V4, protocol, port), allowed, "{port}");
            assert_eq!(claims.refusals.is_empty(), allowed);
        }
        let mut own = host();
        own.api_servers.insert("192.0.2.1:30443".parse().unwrap());
        let ports = json!([{"port": 80, "nodePort": 30443}]);
        let spec = json!({"clusterIP": "10.96.0.9", "type": "NodePort", "ports": ports});
        let service = service(spec, json!([]));
        let claims = Claims::judge(&own, [&service].into_iter(), &Slices::index([]));
        let refusal = claims.refusals.first().unwrap().to_string();
        assert_eq!(
            refusal,
            "node port 30443/TCP is not served on this node: an API server of this cluster answers there"
        );
    }
    #[test]
    fn refuses_ports_beyond_the_limit_of_pairs() {
        let ports = |count: usize| -> Vec<Value> {
            (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port})).collect()
        };
        let ips: Vec<_> = (0..1023).map(|n| format!("203.0.{}.{}", n / 250, n % 250)).collect();
        let spec =
            |count| json!({"clusterIP": "10.96.0.9", "externalIPs": ips, "ports": ports(count)});
        assert!(claims_of(&service(spec(64), json!([]))).refusals.is_empty());
        let claims = claims_of(&service(spec(5000), json!([])));
        let refusal = claims.refusals.first().unwrap();
        assert_eq!((refusal.reason, claims.refusals.len()), (Reason::Pairs, 1));
        assert!(
            refusal
                .to_string()
                .starts_with("the range of the last 4936 ports, from 65/TCP is not served")
        );
    }

    #[test]
    fn limits_the_pairs_of_a_namespace() {
        let ports: Vec<Value> =
            (1..=64).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let ips: Vec<_> = (0..1023).map(|n| format!("203.0.{}.{}", n / 250, n % 250)).collect();
        let spec = json!({"clusterIP": "10.96.0.9", "externalIPs": ips, "ports": ports});
        let named = |namespace: &str, name: String| {
            let mut service = service(spec.clone(), json!([]));
            (service.metadata.namespace, service.metadata.name) = (namespace.into(), name.into());
            service
        };
        let mut services: Vec<_> = (10..50).map(|n| named("full", format!("s{n}"))).collect();
        services.push(named("other", "s".to_owned()));
        let claims = Claims::judge(&host(), services.iter(), &Slices::index([]));
        let served = |n: usize| claims.served_ports(&services[n]).len();
        assert_eq!([0, 1, 2, 39, 40].map(served), [64, 64, 0, 0, 64]);
        assert_eq!(claims.refusals.len(), MAX_REFUSALS);
    }

    #[test]
    fn reports_a_limited_number_of_refusals_of_a_service() {
        let ports: Vec<_> =
            (1..2000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let spec = json!({"clusterIP": "10.96.0.9", "externalIPs": ["127.0.0.1"], "ports": ports});
        let claims = claims_of(&service(spec, json!([])));
        assert_eq!(claims.refusals.len(), MAX_REFUSALS);
        assert!((1..2000).all(|port| !claims.allow([127, 0, 0, 1].into(), Protocol::Tcp, port)));
    }
}
