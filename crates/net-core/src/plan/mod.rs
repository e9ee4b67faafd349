//! Services and endpoints → the nftables table of one address family, or its chains of iptables ([`iptables`]).
//!
//! The table has upstream's name and structure, so that either proxy can take over from the other: maps from
//! (address, protocol, port) and (protocol, port) to a Service's chain, one chain per Service port that picks
//! an endpoint's chain by a random number or by the client's affinity, and one chain per endpoint that
//! rewrites the destination. Only the first packet of a connection walks them.

mod base;
pub mod iptables;
mod port;
mod service;

#[cfg(test)]
mod iptables_tests;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::{Cidr, Family, api::Service, claims::Host, endpoints::Slices, nft::Table};

/// The table's name, which is upstream's: who takes over replaces it.
pub const TABLE: &str = "kube-proxy";

/// What the rules depend on besides Services and endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which of this machine's clusters the rules are of, where it may have several.
    pub cluster: String,
    /// This node, whose endpoints are local.
    pub node: String,
    /// This node's zone, which hints are compared with.
    pub zone: Option<String>,
    /// Whether all traffic to Services gets this node's address for its source.
    pub masquerade_all: bool,
    /// Which bit of a packet's mark asks for that.
    pub masquerade_bit: u8,
    pub local: LocalTraffic,
    pub node_ports: NodePorts,
    /// Node ports answer on 127.0.0.1 too. The node has to route loopback addresses for it (`route_localnet`), and
    /// the rules keep everyone else from using that.
    pub localhost_node_ports: bool,
    /// The ranges that Service addresses come from: traffic to an address in them that no Service has is
    /// dropped here rather than sent to the default gateway.
    pub service_cidrs: Vec<Cidr>,
    /// The sockets that Services may not take.
    pub host: Host,
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
            host: Host::default(),
        }
    }
}

/// How a packet of a Pod on this node is told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    Unknown,
    /// By its source: the cluster's or the node's Pod ranges.
    From(Vec<Cidr>),
    /// By the interface that it comes in by: this bridge.
    Bridge(String),
    /// By that interface's name, which begins so.
    InterfacePrefix(String),
}

impl LocalTraffic {
    /// As [`LocalTraffic::rule`], for iptables.
    fn iptables(&self, family: Family, local: bool) -> Option<String> {
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

    /// The match for local traffic, or for all other; `None` where this family cannot tell.
    fn rule(&self, family: Family, local: bool) -> Option<String> {
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
    /// Every address of the node but loopback.
    All,
    Addresses(Vec<IpAddr>),
}

/// The sealed table for `family`. Of Services that claim one address and port, the first in order of
/// namespace and name gets it.
pub fn plan<'a>(
    family: Family,
    config: &'a Config,
    services: impl IntoIterator<Item = &'a Service>,
    slices: &Slices<'a>,
) -> Table {
    let mut table = base::table(family, config);
    for port in port::all(family, config, services, slices) {
        service::add(&mut table, &port);
    }
    table.seal_for(&config.cluster);
    table
}
