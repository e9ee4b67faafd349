//! Selects the endpoints of a Service port, and those that traffic may reach from this node.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use api_meta::special;

use crate::{
    Family,
    api::{
        AddressType, EndpointSlice, Protocol, Service, ServicePort, ServiceType, SliceEndpoint,
        TrafficPolicy,
    },
};

/// An address and port that serve a Service port.
#[derive(Clone, Debug)]
pub struct Endpoint<'a> {
    /// The address.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
    /// `true` if the endpoint runs on this node.
    pub local: bool,
    source: &'a SliceEndpoint,
}

impl Endpoint<'_> {
    /// Formats address and port as rules contain them.
    pub fn socket(&self) -> String {
        std::net::SocketAddr::new(self.ip, self.port).to_string()
    }

    fn ready(&self) -> bool {
        self.source.conditions.ready()
    }

    /// Returns `true` if the endpoint responds, which suffices if no endpoint is ready.
    pub fn serving(&self) -> bool {
        self.source.conditions.serving()
    }

    /// Returns `true` for a terminating endpoint that still responds. It is used only if no endpoint is ready.
    fn serving_last(&self) -> bool {
        self.source.conditions.serving() && self.source.conditions.terminating()
    }
}

/// EndpointSlices indexed by their Service.
pub struct Slices<'a>(HashMap<&'a str, HashMap<&'a str, Vec<&'a EndpointSlice>>>);

impl<'a> Slices<'a> {
    /// Indexes slices by the Service in their label. Slices without the label are ignored.
    pub fn index(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Self {
        let mut by_namespace: HashMap<_, HashMap<_, Vec<_>>> = HashMap::new();
        for slice in slices {
            if let Some(service) = slice.service() {
                let services = by_namespace.entry(&*slice.metadata.namespace).or_default();
                services.entry(service).or_default().push(slice);
            }
        }
        Self(by_namespace)
    }

    /// Returns the slices of a Service, in their original order.
    pub fn of(&self, service: &Service) -> &[&'a EndpointSlice] {
        self.by_name(&service.metadata.namespace, &service.metadata.name)
    }

    /// Returns the slices of the Service with this namespace and name.
    pub(crate) fn by_name(&self, namespace: &str, service: &str) -> &[&'a EndpointSlice] {
        let services = self.0.get(namespace);
        services.and_then(|services| services.get(service)).map_or(&[], Vec::as_slice)
    }

    /// Indexes the slices of a Service by port.
    pub fn ports(&self, service: &Service, family: Family) -> SlicePorts<'a> {
        let address_type = match family {
            Family::V4 => AddressType::IPv4,
            Family::V6 => AddressType::IPv6,
        };
        let mut ports: HashMap<_, Vec<_>> = HashMap::new();
        for slice in self.of(service).iter().filter(|slice| slice.address_type == address_type) {
            for port in &slice.ports {
                let Some(number) = port.port else { continue };
                let key = (port.name.as_deref().unwrap_or_default(), port.protocol);
                ports.entry(key).or_default().push((number, *slice));
            }
        }
        SlicePorts { family, ports }
    }
}

/// The EndpointSlices of one Service and family, indexed by name and protocol of their ports.
pub struct SlicePorts<'a> {
    family: Family,
    ports: HashMap<(&'a str, Protocol), Vec<(u16, &'a EndpointSlice)>>,
}

impl<'a> SlicePorts<'a> {
    /// Returns the endpoints of one port, sorted by address. Of duplicates in several slices, the ready one wins.
    pub fn endpoints(&self, port: &ServicePort, node: &str) -> Vec<Endpoint<'a>> {
        let mut endpoints: BTreeMap<(IpAddr, u16), Endpoint<'a>> = BTreeMap::new();
        let slices = self.ports.get(&(&*port.name, port.protocol));
        for (number, slice) in slices.into_iter().flatten().copied() {
            for source in &slice.endpoints {
                // The API defines no meaning for addresses after the first.
                let Some(ip) = source.addresses.first().and_then(|ip| target(ip, self.family))
                else {
                    continue;
                };
                let local = source.node_name.as_deref() == Some(node);
                let endpoint = Endpoint { ip, port: number, local, source };
                let entry = endpoints.entry((ip, number)).or_insert_with(|| endpoint.clone());
                if !entry.ready() && endpoint.ready() {
                    *entry = endpoint;
                }
            }
        }
        endpoints.into_values().collect()
    }
}

/// Returns the number of a Service's pairs for each of its ports: with its addresses and with its endpoints. Each pair
/// is at least one rule.
pub(crate) fn pairs_per_port(service: &Service, slices: &Slices<'_>) -> usize {
    let endpoints: usize = slices.of(service).iter().map(|slice| slice.endpoints.len()).sum();
    1 + service.spec.external_ips.len() + service.status.load_balancer.ingress.len() + endpoints
}

/// Parses a routable address of `family`. Special addresses are rejected, because their meaning is local to the node or
/// its link. The API server rejects them too, but objects stored by another API server must not lead to the node's own
/// loopback.
fn target(text: &str, family: Family) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    (Family::of(ip) == family && ip.to_canonical() == ip && special(ip).is_none()).then_some(ip)
}

/// The endpoints for each traffic policy.
#[derive(Clone, Debug, Default)]
pub struct Choice<'a> {
    /// The endpoints for the `Cluster` traffic policy.
    pub cluster: Vec<Endpoint<'a>>,
    /// The endpoints for the `Local` traffic policy.
    pub local: Vec<Endpoint<'a>>,
    /// `true` if any node could serve the port: then packets are dropped instead of rejected.
    pub any: bool,
}

impl<'a> Choice<'a> {
    /// Chooses endpoints. `zone` is this node's zone; hints name the zones and nodes that an endpoint prefers.
    pub fn make(endpoints: &[Endpoint<'a>], node: &str, zone: Option<&str>) -> Self {
        let ready: Vec<_> = endpoints.iter().filter(|endpoint| endpoint.ready()).cloned().collect();
        let any = endpoints.iter().any(|endpoint| endpoint.ready() || endpoint.serving_last());
        let cluster = match hinted(&ready, node, zone) {
            hinted if !hinted.is_empty() => hinted,
            _ if !ready.is_empty() => ready.clone(),
            _ => endpoints.iter().filter(|endpoint| endpoint.serving_last()).cloned().collect(),
        };
        let mut local: Vec<_> = ready.into_iter().filter(|endpoint| endpoint.local).collect();
        if local.is_empty() {
            let last =
                endpoints.iter().filter(|endpoint| endpoint.local && endpoint.serving_last());
            local = last.cloned().collect();
        }
        Self { cluster, local, any }
    }

    /// Returns the endpoints for a traffic policy. If empty and `any` is `true`, packets are dropped, not rejected.
    pub(crate) fn for_policy(&self, policy: TrafficPolicy) -> &[Endpoint<'a>] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }
}

/// Returns the endpoints with a hint for this node, or else for its zone. Hints only count if all ready endpoints have
/// them; otherwise the slices are being updated.
fn hinted<'a>(ready: &[Endpoint<'a>], node: &str, zone: Option<&str>) -> Vec<Endpoint<'a>> {
    let names = |endpoint: &Endpoint<'a>, of: HintKind| {
        let hints = endpoint.source.hints.as_deref();
        let hints = hints.map(|hints| match of {
            HintKind::Node => &hints.for_nodes,
            HintKind::Zone => &hints.for_zones,
        });
        hints.map(Vec::as_slice).unwrap_or_default()
    };
    for (of, name) in [(HintKind::Node, Some(node)), (HintKind::Zone, zone)] {
        let Some(name) = name else { continue };
        if ready.iter().any(|endpoint| names(endpoint, of).is_empty()) {
            continue;
        }
        let here = ready
            .iter()
            .filter(|endpoint| names(endpoint, of).iter().any(|hint| hint.name == name));
        let here: Vec<_> = here.cloned().collect();
        if !here.is_empty() {
            return here;
        }
    }
    Vec::new()
}

#[derive(Clone, Copy)]
enum HintKind {
    Node,
    Zone,
}

/// Counts the ready endpoints on this node, for a load balancer's health check.
pub fn local_ready(slices: &Slices<'_>, service: &Service, node: &str) -> usize {
    let endpoints = slices.of(service).iter().flat_map(|slice| &slice.endpoints);
    let local = endpoints.filter(|endpoint| {
        endpoint.node_name.as_deref() == Some(node) && endpoint.conditions.ready()
    });
    local
        .filter_map(|endpoint| endpoint.addresses.first())
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

/// Reports whether the proxy has rules for this Service.
pub fn is_proxied(service: &Service) -> bool {
    let spec = &service.spec;
    spec.kind != ServiceType::ExternalName
        && spec.cluster_ip != "None"
        && !spec.cluster_ip.is_empty()
        && !service.metadata.labels.contains_key("service.kubernetes.io/service-proxy-name")
}

/// Returns the cluster IPs of a Service.
pub(crate) fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let ips = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    ips.filter_map(|ip| ip.parse().ok())
}

/// Returns the other addresses of a Service: external IPs, and load balancer addresses that the node may handle itself.
pub(crate) fn external_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let external = service.spec.external_ips.iter().filter_map(|ip| ip.parse().ok());
    external.chain(balancer_addresses(service))
}

/// Returns the load balancer addresses that the node handles itself, without sending traffic to the load balancer.
pub(crate) fn balancer_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let is_balanced = service.spec.kind == ServiceType::LoadBalancer;
    let ingress = service.status.load_balancer.ingress.iter();
    let ours = ingress.filter(move |ingress| is_balanced && ingress.ip_mode != "Proxy");
    ours.filter_map(|ingress| ingress.ip.parse().ok())
}
