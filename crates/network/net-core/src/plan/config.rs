//! The settings that rules depend on.

use std::net::IpAddr;

use crate::{Cidr, Family, api::Protocol, claims::Host};

/// The table's name, the same as upstream's, so that another proxy replaces the table.
pub const TABLE: &str = "kube-proxy";

/// The settings that rules depend on besides Services and endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The id of the cluster that the rules belong to, if the machine may have several; otherwise empty.
    pub cluster: String,
    /// The name of this node, whose endpoints are local.
    pub node: String,
    /// The zone of this node, for the comparison with endpoint hints.
    pub zone: Option<String>,
    /// `true` if all traffic to Services is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading.
    pub masquerade_bit: u8,
    /// The match for traffic of this node's Pods.
    pub local: LocalTraffic,
    /// The addresses that accept NodePort traffic.
    pub node_ports: NodePorts,
    /// `true` if node ports also answer on 127.0.0.1. The node must route loopback addresses for it (`route_localnet`),
    /// and the rules protect these addresses from other hosts.
    pub localhost_node_ports: bool,
    /// The CIDRs of Service addresses. Traffic to an unallocated address in them is dropped, not routed.
    pub service_cidrs: Vec<Cidr>,
    /// The ports of this node that lead to node ports.
    pub published: Vec<PublishedPort>,
    /// The facts about the host for checking claims of Services.
    pub host: Host,
}

/// A port of the node that leads to a node port, besides that node port itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedPort {
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the node.
    pub port: u16,
    /// The node port of a Service.
    pub node_port: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            node: String::new(),
            zone: None,
            masquerade_all: false,
            masquerade_bit: 14,
            local: LocalTraffic::Unknown,
            node_ports: NodePorts::Addresses(Vec::new()),
            localhost_node_ports: false,
            service_cidrs: Vec::new(),
            published: Vec::new(),
            host: Host::default(),
        }
    }
}

/// The match that distinguishes traffic of this node's Pods from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    Unknown,
    /// The source address is in one of these CIDRs, those of the cluster or of the node.
    From(Vec<Cidr>),
    /// The packet arrives through this bridge.
    Bridge(String),
    /// The packet arrives through an interface with this name prefix.
    InterfacePrefix(String),
}

impl LocalTraffic {
    /// Returns the match of [`LocalTraffic::rule`] for iptables.
    pub(super) fn iptables(&self, family: Family, local: bool) -> Option<String> {
        let not = if local { "" } else { "! " };
        match self {
            LocalTraffic::Unknown => None,
            LocalTraffic::From(ranges) => {
                let range = ranges.iter().find(|range| range.family() == family)?;
                Some(format!("{not}-s {}", range.network()))
            }
            LocalTraffic::Bridge(name) => Some(format!("{not}-i {name}")),
            LocalTraffic::InterfacePrefix(prefix) => Some(format!("{not}-i {prefix}+")),
        }
    }

    /// Returns the match for local or for other traffic; `None` if it is unknown in this family.
    pub(super) fn rule(&self, family: Family, local: bool) -> Option<String> {
        let equal = if local { "" } else { "!= " };
        match self {
            LocalTraffic::Unknown => None,
            LocalTraffic::From(ranges) => {
                let range = ranges.iter().find(|range| range.family() == family)?;
                Some(format!("{} saddr {equal}{}", family.nft(), range.network()))
            }
            LocalTraffic::Bridge(name) => Some(format!("iifname {equal}\"{name}\"")),
            LocalTraffic::InterfacePrefix(prefix) => Some(format!("iifname {equal}\"{prefix}*\"")),
        }
    }
}

/// The node's addresses that accept NodePort traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// All addresses of the node except loopback.
    All,
    Addresses(Vec<IpAddr>),
}
