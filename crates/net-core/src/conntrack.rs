//! Which UDP flows the kernel still sends to an endpoint that is gone.
//!
//! The kernel remembers where it sent a UDP flow for as long as the client goes on sending, whatever the rules
//! say by now. TCP needs no help: its endpoint's silence or reset ends the connection.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    Family,
    api::{Protocol, Service},
    endpoints::{Slices, is_proxied, service_addresses},
};

/// A flow as the kernel tracks it: what the client sent to, and who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub destination: SocketAddr,
    pub answered_by: SocketAddr,
}

/// Where each UDP Service may be sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UdpServices {
    addresses: HashMap<SocketAddr, Arc<BTreeSet<SocketAddr>>>,
    node_ports: HashMap<(Family, u16), Arc<BTreeSet<SocketAddr>>>,
    node_addresses: BTreeSet<IpAddr>,
}

impl UdpServices {
    /// `node_addresses` are those that accept NodePort traffic.
    pub fn of<'a>(
        services: impl IntoIterator<Item = &'a Service>,
        slices: &Slices<'_>,
        node_addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let mut known =
            Self { node_addresses: node_addresses.into_iter().collect(), ..Self::default() };
        for service in services.into_iter().filter(|service| is_proxied(service)) {
            for port in service.spec.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
                for family in Family::ALL {
                    let endpoints = slices.endpoints(service, port, family, "");
                    let serving = endpoints.iter().filter(|endpoint| endpoint.serving());
                    let targets = Arc::new(
                        serving
                            .map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port))
                            .collect(),
                    );
                    for ip in service_addresses(service).filter(|ip| Family::of(*ip) == family) {
                        known
                            .addresses
                            .insert(SocketAddr::new(ip, port.port), Arc::clone(&targets));
                    }
                    if port.node_port != 0 {
                        known.node_ports.insert((family, port.node_port), targets);
                    }
                }
            }
        }
        known
    }

    /// No Service has UDP ports: the kernel's flows need not be listed.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Whether the flow is one of ours and goes where it may no longer go.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let destination = flow.destination;
        let by_port = || {
            let ours = self.node_addresses.contains(&destination.ip());
            self.node_ports
                .get(&(Family::of(destination.ip()), destination.port()))
                .filter(|_| ours)
        };
        let Some(targets) = self.addresses.get(&destination).or_else(by_port) else { return false };
        // A flow that began while the Service had no endpoint was never rewritten.
        let unrewritten = flow.answered_by == destination;
        if unrewritten { !targets.is_empty() } else { !targets.contains(&flow.answered_by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EndpointSlice;

    #[test]
    fn flows_to_removed_endpoints_and_flows_never_rewritten_are_stale() {
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
        let with =
            UdpServices::of([&service], &Slices::index([&slice]), ["192.168.0.1".parse().unwrap()]);
        let without = UdpServices::of([&service], &Slices::index([]), []);
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
