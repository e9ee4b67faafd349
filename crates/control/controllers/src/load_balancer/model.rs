//! The inputs and results of plans, and the questions about a Service that plans answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use api_meta::Family;

use crate::{
    config::LoadBalancerSource,
    views::{Node, Service},
};

/// The finalizer that keeps a Service until its addresses are released. The name is upstream's.
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// The state of the cluster that a plan depends on.
pub(super) struct Snapshot<'a> {
    pub(super) source: &'a LoadBalancerSource,
    /// All Services; the plan ignores those of other load balancers.
    pub(super) services: Vec<&'a Service>,
    pub(super) nodes: Vec<&'a Node>,
    /// The addresses that this process has assigned, by the UIDs of Services. Informers may not have them yet.
    pub(super) assigned: &'a BTreeMap<String, Vec<IpAddr>>,
    /// The names of the nodes with a ready endpoint, by the keys of Services with the traffic policy `Local`.
    pub(super) local: &'a BTreeMap<String, BTreeSet<String>>,
    /// The endpoints of the API servers.
    pub(super) api_servers: &'a BTreeSet<SocketAddr>,
}

/// The desired state of one Service.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// The Service has these addresses. A shortage is reported to its author.
    Assign { addresses: Vec<IpAddr>, shortage: Option<Shortage> },
    /// The Service has no addresses any more, and the finalizer is removed.
    Release,
}

/// The reason why a Service has fewer addresses than it could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    NoNode,
    NoEndpoint,
    PortsInUse,
    NotOfNode(IpAddr),
    NoRange(Family),
    RangeExhausted(Family),
    OutsideRanges(IpAddr),
    InUse(IpAddr),
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |family: &Family| match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        match self {
            Self::NoNode => f.write_str(
                "no node is Ready, has an address of the Service's IP families and is not excluded by its labels",
            ),
            Self::NoEndpoint => {
                f.write_str("externalTrafficPolicy is Local and no node has a ready endpoint")
            }
            Self::PortsInUse => f.write_str(
                "no node has all ports of the Service free; another Service of type LoadBalancer, the kubelet or an \
                 API server uses them",
            ),
            Self::NotOfNode(ip) => {
                write!(f, "spec.loadBalancerIP {ip} is not the address of a usable node")
            }
            Self::NoRange(family) => {
                write!(f, "the cluster has no load balancer range of family {}", name(family))
            }
            Self::RangeExhausted(family) => {
                write!(f, "no address of family {} is free in the load balancer ranges", name(family))
            }
            Self::OutsideRanges(ip) => {
                write!(f, "spec.loadBalancerIP {ip} is not in a load balancer range")
            }
            Self::InUse(ip) => write!(f, "spec.loadBalancerIP {ip} is in use"),
        }
    }
}

/// Returns `true` if the Service needs an address from this controller.
pub(super) fn is_balanced(service: &Service) -> bool {
    service.spec.r#type == "LoadBalancer"
        && !has_foreign_class(service)
        && !service.metadata.terminating()
}

/// Returns `true` if the Service may have an address, or has one that must be released.
pub(super) fn concerns(service: &Service) -> bool {
    is_balanced(service) || is_released(service)
}

/// Returns `true` if the Service must give up its addresses.
pub(super) fn is_released(service: &Service) -> bool {
    !is_balanced(service)
        && !has_foreign_class(service)
        && service.metadata.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

fn has_foreign_class(service: &Service) -> bool {
    service.spec.load_balancer_class.as_deref().is_some_and(|class| !class.is_empty())
}

/// Returns `true` if only nodes with an endpoint of the Service serve it.
pub(super) fn is_local(service: &Service) -> bool {
    service.spec.external_traffic_policy.as_deref() == Some("Local")
}

impl Snapshot<'_> {
    /// Returns the addresses that the Service has.
    pub(super) fn current(&self, service: &Service) -> Vec<IpAddr> {
        if let Some(assigned) = self.assigned.get(&service.metadata.uid) {
            return assigned.clone();
        }
        let ingress = &service.status.load_balancer.ingress;
        ingress.iter().filter_map(|ingress| ingress.ip.parse().ok()).collect()
    }
}

/// Returns the Service's IP families, the primary one first. Objects older than dual stack name none.
pub(super) fn families(service: &Service) -> Vec<Family> {
    let named = service.spec.ip_families.iter();
    let families: Vec<_> = named
        .filter_map(|name| match name.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })
        .collect();
    if families.is_empty() { vec![Family::V4] } else { families }
}

/// Returns the address that the Service's author requests.
pub(super) fn requested(service: &Service) -> Option<IpAddr> {
    service.spec.load_balancer_ip.as_deref()?.parse().ok()
}

/// Sorts addresses by the order of the Service's IP families.
pub(super) fn sort(addresses: &mut [IpAddr], families: &[Family]) {
    let rank = |ip: &IpAddr| families.iter().position(|family| *family == Family::of(*ip));
    addresses.sort_by_key(|ip| (rank(ip), *ip));
}
