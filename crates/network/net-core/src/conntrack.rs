//! Finds UDP conntrack entries whose endpoint is gone.
//!
//! The kernel keeps the entry of a UDP flow as long as the client sends, whatever the current rules say. TCP needs no
//! help: silence or a reset of the endpoint ends the connection.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    Family,
    api::{Protocol, Service, ServicePort},
    claims::Claims,
    endpoints::{SlicePorts, Slices, cluster_ips, external_addresses, is_proxied},
    plan::PublishedPort,
};

/// A conntrack entry of a UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The socket that the client sends to.
    pub destination: SocketAddr,
    /// The socket that answers, after destination NAT.
    pub answered_by: SocketAddr,
}

/// The endpoints of all UDP Services.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UdpServices {
    addresses: HashMap<SocketAddr, Targets>,
    node_ports: HashMap<(Family, u16), Targets>,
    node_addresses: BTreeSet<IpAddr>,
}

/// The endpoints of one Service port.
type Targets = Arc<BTreeSet<SocketAddr>>;

fn targets(slices: &SlicePorts<'_>, port: &ServicePort) -> Targets {
    let endpoints = slices.endpoints(port, "");
    let serving = endpoints.iter().filter(|endpoint| endpoint.serving());
    Arc::new(serving.map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port)).collect())
}

impl UdpServices {
    /// Adds the ports of this node that lead to node ports.
    pub fn publish(&mut self, ports: &[PublishedPort]) {
        for published in ports.iter().filter(|published| published.protocol == Protocol::Udp) {
            for family in Family::ALL {
                if let Some(targets) = self.node_ports.get(&(family, published.node_port)) {
                    self.node_ports.insert((family, published.port), targets.clone());
                }
            }
        }
    }

    /// Collects the UDP Services. `node_addresses` are the addresses that accept NodePort traffic. A refused claim has
    /// no targets: flows that were forwarded from there end, and flows to the node's own program continue.
    pub fn of<'a>(
        services: impl IntoIterator<Item = &'a Service>,
        slices: &Slices<'_>,
        node_addresses: impl IntoIterator<Item = IpAddr>,
        claims: &Claims,
    ) -> Self {
        let mut this =
            Self { node_addresses: node_addresses.into_iter().collect(), ..Self::default() };
        let mut services: Vec<_> =
            services.into_iter().filter(|service| is_proxied(service)).collect();
        services.sort_by_key(|service| (&service.metadata.namespace, &service.metadata.name));
        let mut external = Vec::new();
        for service in services {
            let by_port = Family::ALL.map(|family| (family, slices.ports(service, family)));
            let ports = claims.served_ports(service).iter();
            for port in ports.filter(|port| port.protocol == Protocol::Udp) {
                for (family, by_port) in &by_port {
                    let (family, targets) = (*family, targets(by_port, port));
                    let own = cluster_ips(service).filter(|ip| Family::of(*ip) == family);
                    this.claim(own.map(|ip| SocketAddr::new(ip, port.port)), &targets);
                    external.push((service, port, family, targets));
                }
            }
        }
        let none = Targets::default();
        let udp = Protocol::Udp;
        // As in the rules, cluster IPs win over other claims, and then the first Service wins.
        for (service, port, family, targets) in external {
            for ip in external_addresses(service).filter(|ip| Family::of(*ip) == family) {
                let targets = if claims.allow(ip, udp, port.port) { &targets } else { &none };
                this.claim([SocketAddr::new(ip, port.port)], targets);
            }
            if port.node_port != 0 {
                let allowed = claims.allow_node_port(family, udp, port.node_port);
                let targets = if allowed { targets } else { none.clone() };
                this.node_ports.entry((family, port.node_port)).or_insert(targets);
            }
        }
        this
    }

    /// Adds sockets that no earlier Service has claimed.
    fn claim(&mut self, sockets: impl IntoIterator<Item = SocketAddr>, targets: &Targets) {
        for socket in sockets {
            self.addresses.entry(socket).or_insert_with(|| Arc::clone(targets));
        }
    }

    /// Returns `true` if no Service has UDP ports, so that conntrack entries need not be listed.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Reports whether the flow belongs to a Service and goes to an endpoint that is gone.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let destination = flow.destination;
        let by_port = || {
            let ours = self.node_addresses.contains(&destination.ip());
            self.node_ports
                .get(&(Family::of(destination.ip()), destination.port()))
                .filter(|_| ours)
        };
        let Some(targets) = self.addresses.get(&destination).or_else(by_port) else { return false };
        // A flow that started while the Service had no endpoint was never rewritten.
        let unrewritten = flow.answered_by == destination;
        if unrewritten { !targets.is_empty() } else { !targets.contains(&flow.answered_by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::EndpointSlice, claims::Host};

    /// CVE-2020-8554 by UDP: a tenant that claims the address of the cluster DNS must not end the flows to it.
    #[test]
    fn cve_2020_8554_claims_end_no_flow_of_a_cluster_ip() {
        let service = |namespace: &str, spec: serde_json::Value| -> Service {
            serde_json::from_value(
                serde_json::json!({"metadata": {"name": "dns", "namespace": namespace}, "spec": spec}),
            )
            .unwrap()
        };
        let ports = serde_json::json!([{"name": "dns", "protocol": "UDP", "port": 53}]);
        let dns =
            service("kube-system", serde_json::json!({"clusterIP": "10.96.0.10", "ports": ports}));
        let spec = serde_json::json!({"clusterIP": "10.96.0.66", "externalIPs": ["10.96.0.10"], "ports": ports});
        let slice = |namespace: &str, ip: &str| -> EndpointSlice {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "dns-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": "dns"}},
                "addressType": "IPv4", "ports": [{"name": "dns", "protocol": "UDP", "port": 53}],
                "endpoints": [{"addresses": [ip]}],
            }))
            .unwrap()
        };
        for namespace in ["a-tenant", "z-tenant"] {
            let tenant = service(namespace, spec.clone());
            let own = [slice("kube-system", "10.1.0.2"), slice(namespace, "10.1.0.66")];
            let slices = Slices::index(&own);
            let services = [&tenant, &dns];
            let claims = Claims::judge(&Host::default(), services.into_iter(), &slices);
            let known = UdpServices::of(services, &slices, [], &claims);
            let flow = |answered_by: &str| Flow {
                destination: "10.96.0.10:53".parse().unwrap(),
                answered_by: answered_by.parse().unwrap(),
            };
            assert!(!known.is_stale(&flow("10.1.0.2:53")), "{namespace}: cluster DNS continues");
            assert!(known.is_stale(&flow("10.1.0.66:53")), "{namespace}: the tenant's end");
        }
    }

    #[test]
    fn flows_without_current_endpoint_are_stale() {
        let service: Service = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "dns", "namespace": "kube-system"},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                     "ports": [{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]},
        }))
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "dns-1", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "dns"}},
            "addressType": "IPv4", "ports": [{"name": "dns", "protocol": "UDP", "port": 1053}],
            "endpoints": [{"addresses": ["10.1.0.2"]}, {"addresses": ["10.1.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}}],
        })).unwrap();
        let with = UdpServices::of(
            [&service],
            &Slices::index([&slice]),
            ["192.168.0.1".parse().unwrap()],
            &Claims::default(),
        );
        let without = UdpServices::of([&service], &Slices::index([]), [], &Claims::default());
        for (destination, answered_by, stale_with, stale_without) in [
            ("10.96.0.10:53", "10.1.0.2:1053", false, true),
            ("10.96.0.10:53", "10.1.0.3:1053", false, true),
            ("10.96.0.10:53", "10.1.0.9:1053", true, true),
            ("10.96.0.10:53", "10.96.0.10:53", true, false),
            ("10.96.0.10:54", "10.1.0.9:1053", false, false),
            ("192.168.0.1:30053", "10.1.0.9:1053", true, false),
            ("192.168.0.2:30053", "10.1.0.9:1053", false, false),
        ] {
            let flow = Flow {
                destination: destination.parse().unwrap(),
                answered_by: answered_by.parse().unwrap(),
            };
            assert_eq!(
                (with.is_stale(&flow), without.is_stale(&flow)),
                (stale_with, stale_without),
                "{flow:?}"
            );
        }
    }
}
