//! Firewall rules among the machines. Control planes may reach all machines. Workers may reach workers, and control
//! planes on every port but etcd's.

use super::{context::Context, graph::Model};
use crate::aws::{Kind, Peer, Ref, SecurityGroupRule, Tags};
use api_meta::Tree as _;

/// The client and peer ports of etcd, which only control planes may reach.
const ETCD: [i64; 4] = [2380, 2381, 4001, 4002];
const ETCD_LEASES: [i64; 2] = [2383, 4004];
/// Workers with Cilium are clients of its etcd, but not peers.
const ETCD_CILIUM_PEERS: i64 = 2382;
const LAST_PORT: i64 = 65535;
/// The protocol number of IP in IP.
const IPIP: &str = "4";

pub(super) fn add(context: &Context<'_>, model: &mut Model) {
    let nodes = context.add_role_groups("Node", model);
    let masters = context.add_role_groups("ControlPlane", model);
    for (from, to) in [(&nodes, vec![&nodes]), (&masters, vec![&masters, &nodes])] {
        for group in from {
            allow_egress(model, group);
            for other in to.iter().flat_map(|to| to.iter()) {
                allow(model, SecurityGroupRule::of(other, Peer::Group(group.clone())));
            }
        }
    }
    for master in &masters {
        for node in &nodes {
            add_to_masters(context, model, master, node);
        }
    }
}

fn add_to_masters(context: &Context<'_>, model: &mut Model, master: &Ref, node: &Ref) {
    let rule = || SecurityGroupRule::of(master, Peer::Group(node.clone()));
    allow(model, rule().ports("udp", 1, LAST_PORT));
    for (from, to) in open_ports(context) {
        allow(model, rule().ports("tcp", from, to));
    }
    let has = |network: &str| context.spec.has(&format!("networking.{network}"));
    if has("calico") || has("kubeRouter") {
        allow(model, SecurityGroupRule { protocol: Some(IPIP.to_owned()), ..rule() });
    }
    if has("amazonVPC") {
        allow(model, rule());
    }
}

/// Returns the port ranges that remain without etcd's ports.
fn open_ports(context: &Context<'_>) -> Vec<(i64, i64)> {
    let mut closed = ETCD.to_vec();
    if context.spec.items("etcdClusters").iter().any(|etcd| etcd.text("name") == "leases") {
        closed.extend(ETCD_LEASES);
    }
    if context.cilium_etcd() {
        closed.push(ETCD_CILIUM_PEERS);
    }
    closed.sort_unstable();
    let mut ranges = Vec::new();
    let mut from = 1;
    for port in closed.into_iter().chain([LAST_PORT + 1]) {
        if from < port {
            ranges.push((from, port - 1));
        }
        from = port + 1;
    }
    ranges
}

/// Allows all egress from a group.
pub(super) fn allow_egress(model: &mut Model, group: &Ref) {
    for peer in [Peer::V4("0.0.0.0/0".to_owned()), Peer::V6("::/0".to_owned())] {
        allow(model, SecurityGroupRule { egress: true, ..SecurityGroupRule::of(group, peer) });
    }
}

/// Adds a rule under a name that contains all of its parts.
pub(super) fn allow(model: &mut Model, rule: SecurityGroupRule) {
    let peer = match &rule.peer {
        Peer::Group(group) => &group.name,
        Peer::V4(range) | Peer::V6(range) => range,
        // Upstream uses this range in the names of all prefix lists.
        Peer::Prefixes(_) => "0.0.0.0/0",
    };
    let own = &rule.group.name;
    let (from, direction, to) =
        if rule.egress { (own.as_str(), "egress", peer) } else { (peer, "ingress", own.as_str()) };
    let protocol = rule.protocol.as_deref().unwrap_or("all");
    let (first, last) = rule.ports.unwrap_or((0, 0));
    let name = format!("from-{from}-{direction}-{protocol}-{first}to{last}-{to}");
    allow_as(model, name, rule);
}

/// Adds a rule under the given name.
pub(super) fn allow_as(model: &mut Model, name: impl Into<String>, rule: SecurityGroupRule) {
    model.add(name, Tags::new(), rule);
}

impl SecurityGroupRule {
    /// Returns a rule for all traffic from a peer.
    pub(super) fn of(group: &Ref, peer: Peer) -> Self {
        Self { group: group.clone(), peer, egress: false, protocol: None, ports: None }
    }

    /// Restricts the rule to ports of one protocol, or to ICMP types.
    pub(super) fn ports(self, protocol: &str, from: i64, to: i64) -> Self {
        Self { protocol: Some(protocol.to_owned()), ports: Some((from, to)), ..self }
    }
}

impl Peer {
    /// Parses a range, or the ID of a prefix list.
    pub(super) fn parse(text: &str) -> Self {
        let text = text.to_owned();
        match () {
            () if text.starts_with("pl-") => Self::Prefixes(text),
            () if text.contains(':') => Self::V6(text),
            () => Self::V4(text),
        }
    }
}

pub(super) fn group(name: impl Into<String>) -> Ref {
    Ref::new(Kind::SecurityGroup, name)
}
