//! A Service port in one family, with the data that its rules depend on, for nftables and iptables.

use std::{net::IpAddr, rc::Rc};

use super::config::{Config, NodePorts};
use crate::{
    Cidr, Family,
    api::{Affinity, Service, ServicePort, ServiceType},
    claims::Claims,
    endpoints::{Choice, Slices, balancer_addresses, is_proxied},
};

/// Returns the ports of all Services that a proxy serves, sorted by namespace and name.
pub(super) fn all<'a>(
    family: Family,
    config: &'a Config,
    services: impl IntoIterator<Item = &'a Service>,
    slices: &Slices<'a>,
) -> impl Iterator<Item = Port<'a>> {
    let mut services: Vec<_> = services.into_iter().filter(|service| is_proxied(service)).collect();
    services.sort_by_key(|service| (&service.metadata.namespace, &service.metadata.name));
    let claims = Rc::new(Claims::judge(&config.host, services.iter().copied(), slices));
    services.into_iter().flat_map(move |service| ports_of(family, config, service, slices, &claims))
}

fn ports_of<'a>(
    family: Family,
    config: &'a Config,
    service: &'a Service,
    slices: &Slices<'a>,
    claims: &Rc<Claims>,
) -> Vec<Port<'a>> {
    // Objects older than dual stack only have the singular field.
    let ips = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    // A Service may have no cluster IP of this family.
    let Some(cluster_ip) = addresses(ips, family).next() else { return Vec::new() };
    let sources = sources(family, config, service);
    let by_port = slices.ports(service, family);
    let ports = claims.served_ports(service).iter();
    ports
        .map(|port| {
            let endpoints = by_port.endpoints(port, &config.node);
            let choice = Choice::make(&endpoints, &config.node, config.zone.as_deref());
            let (sources, claims) = (sources.clone(), claims.clone());
            Port { config, service, port, family, cluster_ip, choice, sources, claims }
        })
        .collect()
}

/// Returns the CIDRs that may use the load balancer's addresses of a Service, once for its ports; `None` for all.
fn sources(family: Family, config: &Config, service: &Service) -> Option<Rc<[String]>> {
    let spec = &service.spec;
    let ranges = spec.load_balancer_source_ranges.iter();
    let ranges = ranges.filter_map(|range| range.trim().parse::<Cidr>().ok());
    let ranges: Vec<_> = ranges.filter(|range| range.family() == family).collect();
    if spec.kind != ServiceType::LoadBalancer || ranges.is_empty() {
        return None;
    }
    let mut sources: Vec<_> = ranges.iter().map(|range| range.network()).collect();
    // The node reaches its own load balancer address if the load balancer keeps the source address.
    if config.local_addresses().any(|ip| ranges.iter().any(|range| range.contains(ip))) {
        sources.extend(balancer_addresses(service).map(Cidr::host));
    }
    sources.retain(|source| source.family() == family);
    // A range follows the ranges that contain it. An interval set must not have both.
    sources.sort();
    sources.dedup_by(|inner, outer| outer.covers(*inner));
    Some(sources.iter().map(Cidr::to_string).collect())
}

pub(super) struct Port<'a> {
    pub(super) config: &'a Config,
    pub(super) service: &'a Service,
    pub(super) port: &'a ServicePort,
    pub(super) family: Family,
    pub(super) cluster_ip: IpAddr,
    pub(super) choice: Choice<'a>,
    sources: Option<Rc<[String]>>,
    claims: Rc<Claims>,
}

impl<'a> Port<'a> {
    pub(super) fn is_external(&self) -> bool {
        self.service.spec.kind == ServiceType::LoadBalancer
            || self.port.node_port != 0
            || !self.service.spec.external_ips.is_empty()
    }

    /// Reports whether this node has an endpoint for traffic from outside the cluster.
    pub(super) fn is_served(&self) -> bool {
        !self.choice.for_policy(self.service.spec.external_traffic_policy).is_empty()
    }

    /// Reports whether this node's own traffic has an endpoint. With the `Local` policy it may use any endpoint.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_served() || (self.choice.any && !self.choice.cluster.is_empty())
    }

    /// Returns the addresses besides the cluster IP that this node serves.
    pub(super) fn external_ips(&self) -> impl Iterator<Item = IpAddr> {
        let own = addresses(&self.service.spec.external_ips, self.family);
        own.filter(|ip| self.may_answer(*ip)).chain(self.balancer_ips())
    }

    pub(super) fn balancer_ips(&self) -> impl Iterator<Item = IpAddr> {
        let status_ips =
            balancer_addresses(self.service).filter(|ip| Family::of(*ip) == self.family);
        status_ips.filter(|ip| self.may_answer(*ip))
    }

    /// Returns the ports that all of the node's addresses serve: the node port and those that lead to it.
    pub(super) fn node_ports(&self) -> Vec<u16> {
        let (protocol, port) = (self.port.protocol, self.port.node_port);
        if port == 0 || !self.claims.allow_node_port(self.family, protocol, port) {
            return Vec::new();
        }
        let published = self.config.published.iter();
        let own = published.filter(|own| own.protocol == protocol && own.node_port == port);
        std::iter::once(port).chain(own.map(|own| own.port)).collect()
    }

    fn may_answer(&self, ip: IpAddr) -> bool {
        self.claims.allow(ip, self.port.protocol, self.port.port)
    }

    /// Returns the CIDRs that may use the load balancer's addresses; `None` for all.
    pub(super) fn sources(&self) -> Option<&[String]> {
        self.sources.as_deref().filter(|_| self.balancer_ips().next().is_some())
    }

    /// Returns the affinity timeout in seconds; `None` without affinity.
    pub(super) fn affinity(&self) -> Option<u32> {
        let spec = &self.service.spec;
        let sticky = spec.session_affinity == Affinity::ClientIP;
        sticky.then_some(spec.session_affinity_config.client_ip.timeout_seconds)
    }
}

fn addresses<'a>(
    texts: impl IntoIterator<Item = &'a String>,
    family: Family,
) -> impl Iterator<Item = IpAddr> {
    let parsed = texts.into_iter().filter_map(|text| text.parse::<IpAddr>().ok());
    parsed.filter(move |ip| Family::of(*ip) == family)
}

impl Config {
    fn local_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let addresses = match &self.node_ports {
            NodePorts::All => &[][..],
            NodePorts::Addresses(addresses) => addresses,
        };
        addresses.iter().copied()
    }
}
