//! Plans the paths to the Pods of other nodes: a route to a neighbour, otherwise a VXLAN tunnel. All tunnel entries are
//! static, so that nothing is learned or resolved by broadcast.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{Cidr, Family, api::Node};

/// The settings on which all nodes of a cluster must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of this node.
    pub node: String,
    /// `true` to tunnel even to neighbours, for networks that do not forward packets with Pod addresses.
    pub always_tunnel: bool,
}

/// A node's tunnel device and its paths to all other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The tunnel device of this node; `None` if no node needs it.
    pub tunnel: Option<Tunnel>,
    /// The paths by the other nodes' Pod CIDRs.
    pub peers: BTreeMap<Cidr, Peer>,
}

/// The VXLAN device of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The source address of tunnelled packets.
    pub local: IpAddr,
    /// The MAC address, derived from the node's address so that all nodes can compute it.
    pub mac: [u8; 6],
    /// The first address of each of the node's Pod CIDRs.
    pub addresses: Vec<IpAddr>,
}

/// The path to another node's Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A plain route, because the node shares a link with this one.
    Neighbour { gateway: IpAddr },
    /// A route into the tunnel. `inner` is the gateway in routes, and `node` is the outer destination address.
    Tunnelled { inner: IpAddr, mac: [u8; 6], node: IpAddr },
}

/// Plans the node's paths, except to nodes without address or Pod CIDR. `connected` are its interfaces' networks.
pub fn plan<'a>(
    config: &Config,
    nodes: impl IntoIterator<Item = &'a Node>,
    connected: &[Cidr],
) -> Plan {
    let (own, others): (Vec<_>, Vec<_>) =
        nodes.into_iter().partition(|node| *node.metadata.name == *config.node);
    let Some(own) = own.first() else { return Plan::default() };
    let own_addresses = own.addresses();
    let mut plan = Plan::default();
    for node in others {
        let addresses = node.addresses();
        for range in ranges(node) {
            let neighbour = addresses.iter().copied().find(|ip| {
                Family::of(*ip) == range.family()
                    && connected.iter().any(|network| network.contains(*ip))
            });
            let peer = match neighbour.filter(|_| !config.always_tunnel) {
                Some(gateway) => Some(Peer::Neighbour { gateway }),
                None => tunnelled(&own_addresses, &addresses, range),
            };
            plan.peers.extend(peer.map(|peer| (range, peer)));
        }
    }
    let needs_tunnel = plan.peers.values().any(|peer| matches!(peer, Peer::Tunnelled { .. }));
    if let Some(local) = own_addresses.first().copied().filter(|_| needs_tunnel) {
        let addresses = ranges(own).iter().map(|range| range.network().address).collect();
        plan.tunnel = Some(Tunnel { local, mac: mac_of(local), addresses });
    }
    plan
}

/// All tunnels of a node use its first address, and so one family.
fn tunnelled(own: &[IpAddr], theirs: &[IpAddr], range: Cidr) -> Option<Peer> {
    let family = Family::of(*own.first()?);
    let node = *theirs.iter().find(|ip| Family::of(**ip) == family)?;
    Some(Peer::Tunnelled { inner: range.network().address, mac: mac_of(node), node })
}

fn ranges(node: &Node) -> Vec<Cidr> {
    let texts = std::iter::once(&node.spec.pod_cidr).chain(&node.spec.pod_cidrs);
    let mut ranges: Vec<Cidr> = texts.filter_map(|text| text.parse().ok()).collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// Derives the tunnel's MAC address from the node's address, so that nodes need not exchange it.
fn mac_of(node: IpAddr) -> [u8; 6] {
    crate::derived_mac(0x0e, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ip: &str, range: &str) -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name}, "spec": {"podCIDR": range, "podCIDRs": [range]},
            "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
        }))
        .unwrap()
    }

    fn plan_of(always_tunnel: bool) -> Plan {
        let nodes = [
            node("a", "192.0.2.1", "10.1.0.0/24"),
            node("b", "192.0.2.2", "10.1.1.0/24"),
            node("c", "198.51.100.3", "10.1.2.0/24"),
            node("new", "192.0.2.4", ""),
        ];
        let config = Config { node: "a".into(), always_tunnel };
        plan(&config, &nodes, &["192.0.2.1/24".parse().unwrap(), "10.1.0.1/24".parse().unwrap()])
    }

    #[test]
    fn routes_to_neighbours_and_tunnels_to_others() {
        let plan = plan_of(false);
        assert_eq!(plan.peers.len(), 2);
        let of = |range: &str| &plan.peers[&range.parse::<Cidr>().unwrap()];
        assert_eq!(*of("10.1.1.0/24"), Peer::Neighbour { gateway: "192.0.2.2".parse().unwrap() });
        let inner = "10.1.2.0".parse().unwrap();
        let mac = [0x0e, 0x58, 198, 51, 100, 3];
        assert_eq!(
            *of("10.1.2.0/24"),
            Peer::Tunnelled { inner, mac, node: "198.51.100.3".parse().unwrap() }
        );
        let tunnel = plan.tunnel.unwrap();
        assert_eq!(
            (tunnel.local.to_string(), tunnel.addresses),
            ("192.0.2.1".into(), vec!["10.1.0.0".parse::<IpAddr>().unwrap()])
        );
    }

    #[test]
    fn tunnels_everything_if_configured() {
        let plan = plan_of(true);
        assert!(plan.peers.values().all(|peer| matches!(peer, Peer::Tunnelled { .. })));
        assert_eq!(
            super::plan(&Config { node: "gone".into(), always_tunnel: false }, [], &[]),
            Plan::default()
        );
    }
}
