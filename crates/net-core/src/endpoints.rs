//! Which endpoints a Service port has, and which of them traffic may reach from this node.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use api_meta::special;

use crate::{
    Family,
    api::{
        AddressType, EndpointSlice, Service, ServicePort, ServiceType, SliceEndpoint, TrafficPolicy,
    },
};

/// One address and port that serves a Service port.
#[derive(Clone, Debug)]
pub struct Endpoint<'a> {
    pub ip: IpAddr,
    pub port: u16,
    /// It runs on this node.
    pub local: bool,
    source: &'a SliceEndpoint,
}

impl Endpoint<'_> {
    /// Address and port, as rules write them.
    pub fn socket(&self) -> String {
        std::net::SocketAddr::new(self.ip, self.port).to_string()
    }

    fn ready(&self) -> bool {
        self.source.conditions.ready()
    }

    /// It still answers, which suffices where no endpoint is ready.
    pub fn serving(&self) -> bool {
        self.source.conditions.serving()
    }

    /// A Pod that is being deleted but still answers; used when nothing better is left.
    fn serving_last(&self) -> bool {
        self.source.conditions.serving() && self.source.conditions.terminating()
    }
}

/// The slices by the Service that they belong to.
pub struct Slices<'a>(HashMap<&'a str, HashMap<&'a str, Vec<&'a EndpointSlice>>>);

impl<'a> Slices<'a> {
    /// Sorts slices by the Service that their label names; those without the label belong to nobody.
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

    /// The slices of a Service, in the order that they were given.
    pub fn of(&self, service: &Service) -> &[&'a EndpointSlice] {
        self.named(&service.metadata.namespace, &service.metadata.name)
    }

    /// The slices of the Service with these names.
    pub(crate) fn named(&self, namespace: &str, service: &str) -> &[&'a EndpointSlice] {
        let services = self.0.get(namespace);
        services.and_then(|services| services.get(service)).map_or(&[], Vec::as_slice)
    }

    /// The endpoints of one port, ordered by address. While slices are being moved around, two of them can
    /// name one endpoint; the one that is ready wins.
    pub fn endpoints(
        &self,
        service: &Service,
        port: &ServicePort,
        family: Family,
        node: &str,
    ) -> Vec<Endpoint<'a>> {
        let wanted = match family {
            Family::V4 => AddressType::IPv4,
            Family::V6 => AddressType::IPv6,
        };
        let mut found: BTreeMap<(IpAddr, u16), Endpoint<'a>> = BTreeMap::new();
        for slice in self.of(service).iter().filter(|slice| slice.address_type == wanted) {
            for slice_port in &slice.ports {
                let same = slice_port.name.as_deref().unwrap_or_default() == &*port.name
                    && slice_port.protocol == port.protocol;
                let Some(number) = slice_port.port.filter(|_| same) else { continue };
                for source in &slice.endpoints {
                    // The API gives several addresses no meaning beyond the first.
                    let Some(ip) = source.addresses.first().and_then(|ip| target(ip, family))
                    else {
                        continue;
                    };
                    let local = source.node_name.as_deref() == Some(node);
                    let endpoint = Endpoint { ip, port: number, local, source };
                    let known = found.entry((ip, number)).or_insert_with(|| endpoint.clone());
                    if !known.ready() && endpoint.ready() {
                        *known = endpoint;
                    }
                }
            }
        }
        found.into_values().collect()
    }
}

/// An address that traffic may be sent on to: one of `family`, and none that only means something on this node or its
/// link. The API refuses others; what was stored by another API server must not reach the node's own loopback either.
fn target(text: &str, family: Family) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    (Family::of(ip) == family && ip.to_canonical() == ip && special(ip).is_none()).then_some(ip)
}

/// The endpoints that each kind of traffic may use.
#[derive(Clone, Debug, Default)]
pub struct Choice<'a> {
    /// For the Cluster traffic policy.
    pub cluster: Vec<Endpoint<'a>>,
    /// For the Local traffic policy.
    pub local: Vec<Endpoint<'a>>,
    /// Whether any node could serve the port; tells a refusal from a silent drop.
    pub any: bool,
}

impl<'a> Choice<'a> {
    /// `zone` is this node's; hints name zones and nodes that an endpoint is meant for.
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

    /// The endpoints for traffic under this policy; empty with `any` set means that packets are dropped, not refused.
    pub(crate) fn for_policy(&self, policy: TrafficPolicy) -> &[Endpoint<'a>] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }
}

/// The endpoints hinted for this node, or else for its zone. Hints count only when every ready endpoint has
/// them: a partial set means that the slices are changing over.
fn hinted<'a>(ready: &[Endpoint<'a>], node: &str, zone: Option<&str>) -> Vec<Endpoint<'a>> {
    let names = |endpoint: &Endpoint<'a>, of: Of| {
        let hints = endpoint.source.hints.as_deref();
        let hints = hints.map(|hints| match of {
            Of::Node => &hints.for_nodes,
            Of::Zone => &hints.for_zones,
        });
        hints.map(Vec::as_slice).unwrap_or_default()
    };
    for (of, wanted) in [(Of::Node, Some(node)), (Of::Zone, zone)] {
        let Some(wanted) = wanted else { continue };
        if ready.iter().any(|endpoint| names(endpoint, of).is_empty()) {
            continue;
        }
        let here = ready
            .iter()
            .filter(|endpoint| names(endpoint, of).iter().any(|hint| hint.name == wanted));
        let here: Vec<_> = here.cloned().collect();
        if !here.is_empty() {
            return here;
        }
    }
    Vec::new()
}

#[derive(Clone, Copy)]
enum Of {
    Node,
    Zone,
}

/// How many ready endpoints of any port are on this node, for the health check of a balancer in front.
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

/// Whether a proxy has rules for this Service at all.
pub fn is_proxied(service: &Service) -> bool {
    let spec = &service.spec;
    spec.kind != ServiceType::ExternalName
        && spec.cluster_ip != "None"
        && !spec.cluster_ip.is_empty()
        && !service.metadata.labels.contains_key("service.kubernetes.io/service-proxy-name")
}

/// The addresses that the API has allocated to a Service.
pub(crate) fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let ips = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    ips.filter_map(|ip| ip.parse().ok())
}

/// The addresses that a Service claims beside: external ones, and the balancer's where the balancer lets the node
/// short-circuit it.
pub(crate) fn external_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let external = service.spec.external_ips.iter().filter_map(|ip| ip.parse().ok());
    external.chain(balancer_addresses(service))
}

/// The load balancer's addresses that the node answers for itself, without the way through the balancer.
pub(crate) fn balancer_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let is_balanced = service.spec.kind == ServiceType::LoadBalancer;
    let ingress = service.status.load_balancer.ingress.iter();
    let ours = ingress.filter(move |ingress| is_balanced && ingress.ip_mode != "Proxy");
    ours.filter_map(|ingress| ingress.ip.parse().ok())
}
