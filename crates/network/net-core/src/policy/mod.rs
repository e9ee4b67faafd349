//! NetworkPolicies → the nftables table that allows traffic to and from this node's Pods.
//!
//! A Pod that a policy selects for a direction is isolated in that direction: only traffic that a policy allows, and
//! answers to it, pass. Egress and ingress are separate base chains, because traffic that one accepts must still pass
//! the other. Traffic from the node to its own Pods is never filtered, because probes come from the node.
//!
//! The table has two maps from Pod addresses to the Pods' chains. A Pod's chain jumps to the chains of its policies and
//! ends with `drop`. A policy's chain accepts. Sets hold the peers' addresses.

pub mod api;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use api_meta::{IntOrString, LabelSelector, Selector};

use crate::{
    Cidr, Family,
    api::Protocol,
    nft::{Table, address_type},
};
use api::{IpBlock, Namespaces, NetworkPolicy, Peer, Pod, PolicyType, Port, Rule};

/// The table's name. It differs from other implementations', so that theirs stay in place.
pub const TABLE: &str = "windlass-policy";

/// The names and matches of one direction.
struct Direction {
    of: PolicyType,
    short: &'static str,
    map: &'static str,
    /// The header field with the Pod's own address, and the one with the peer's.
    own: &'static str,
    peer: &'static str,
}

const INGRESS: Direction = Direction {
    of: PolicyType::Ingress,
    short: "in",
    map: "ingress-pods",
    own: "daddr",
    peer: "saddr",
};
const EGRESS: Direction = Direction {
    of: PolicyType::Egress,
    short: "out",
    map: "egress-pods",
    own: "saddr",
    peer: "daddr",
};

/// The cluster state that the rules depend on.
pub struct Snapshot<'a> {
    /// The name of this node.
    pub node: &'a str,
    /// All Pods of the cluster.
    pub pods: Vec<&'a Pod>,
    /// The labels of all namespaces.
    pub namespaces: &'a Namespaces,
    /// All policies of the cluster.
    pub policies: Vec<&'a NetworkPolicy>,
}

/// Returns the sealed table of a family.
pub fn plan(family: Family, snapshot: &Snapshot<'_>) -> Table {
    let mut table = base(family);
    let mut policies = snapshot.policies.clone();
    policies.sort_by_key(|policy| (&policy.metadata.namespace, &policy.metadata.name));
    for direction in [INGRESS, EGRESS] {
        let plan = Plan { family, snapshot, direction };
        plan.add_to(&mut table, &policies);
    }
    table.seal();
    table
}

fn base(family: Family) -> Table {
    let mut table = Table::new(family, TABLE);
    let ip = family.nft();
    let address = address_type(family);
    for direction in [&INGRESS, &EGRESS] {
        table.map(direction.map, format!("type {address} : verdict;"));
    }
    let answers = "ct state { established, related } accept";
    let to = format!("{ip} {} vmap @{}", INGRESS.own, INGRESS.map);
    let from = format!("{ip} {} vmap @{}", EGRESS.own, EGRESS.map);
    table.base_chain("egress", "type filter hook forward priority 0", &[answers, &from]);
    table.base_chain("ingress", "type filter hook forward priority 1", &[answers, &to]);
    let discovery =
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept";
    let mut to_node = vec![answers, &from];
    if family == Family::V6 {
        // A Pod needs neighbour discovery to reach any destination.
        to_node.insert(0, discovery);
    }
    table.base_chain("egress-to-node", "type filter hook input priority 0", &to_node);
    table
}

/// The names of a policy's sets of peers, by the addresses in them.
type PeerSets = HashMap<BTreeSet<IpAddr>, String>;

struct Plan<'a> {
    family: Family,
    snapshot: &'a Snapshot<'a>,
    direction: Direction,
}

impl Plan<'_> {
    fn add_to(&self, table: &mut Table, policies: &[&NetworkPolicy]) {
        let ours = policies.iter().filter(|policy| policy.spec.is_of(self.direction.of));
        // Each isolated Pod's address, with the chains of the policies that select it.
        let mut isolated: BTreeMap<IpAddr, (&Pod, Vec<String>)> = BTreeMap::new();
        for policy in ours {
            let selected = self.selected(policy);
            if selected.is_empty() {
                continue;
            }
            let chain = self.add_policy(table, policy, &selected);
            for (pod, ip) in selected {
                isolated.entry(ip).or_insert((pod, Vec::new())).1.push(chain.clone());
            }
        }
        for (ip, (pod, chains)) in isolated {
            let name = format!(
                "pod-{}-{}/{}",
                self.direction.short, pod.metadata.namespace, pod.metadata.name
            );
            // A Pod may reach itself through a Service; no policy may prevent that.
            let itself = format!("{} {} {ip} accept", self.family.nft(), self.direction.peer);
            let jumps = chains.iter().map(|chain| format!("jump {chain}"));
            let rules = std::iter::once(itself).chain(jumps).chain(["drop".to_owned()]).collect();
            table.chain(&name, rules);
            table.element(self.direction.map, ip.to_string(), format!("goto {name}"));
        }
    }

    /// Returns this node's Pods that the policy isolates.
    fn selected(&self, policy: &NetworkPolicy) -> Vec<(&Pod, IpAddr)> {
        let selector = selector(&policy.spec.pod_selector);
        let pods = self.snapshot.pods.iter().copied().filter(|pod| {
            *pod.spec.node_name == *self.snapshot.node
                && pod.metadata.namespace == policy.metadata.namespace
                && selector.matches(&pod.metadata.labels)
        });
        pods.filter_map(|pod| Some((pod, pod.address(self.family)?))).collect()
    }

    fn add_policy(
        &self,
        table: &mut Table,
        policy: &NetworkPolicy,
        selected: &[(&Pod, IpAddr)],
    ) -> String {
        let meta = &policy.metadata;
        let name = format!("policy-{}-{}/{}", self.direction.short, meta.namespace, meta.name);
        let list = if self.direction.of == PolicyType::Ingress {
            &policy.spec.ingress
        } else {
            &policy.spec.egress
        };
        let mut rules = Vec::new();
        let mut sets = PeerSets::default();
        for (number, rule) in list.iter().enumerate() {
            let name = format!("{name}/{number}");
            rules.extend(self.add_rule(table, &mut sets, &name, &meta.namespace, rule, selected));
        }
        table.chain(&name, rules);
        name
    }

    /// Adds the sets of a rule and returns its lines. There are as many lines as the rule has peers and ports: with a
    /// line for each pair of them, a small object could fill the machine's memory.
    fn add_rule(
        &self,
        table: &mut Table,
        sets: &mut PeerSets,
        name: &str,
        namespace: &str,
        rule: &Rule,
        selected: &[(&Pod, IpAddr)],
    ) -> Vec<String> {
        let pods = self.peers(namespace, rule);
        let mut from = Vec::new();
        if rule.peers.is_empty() {
            from.push(String::new());
        } else if !pods.is_empty() {
            let set = self.add_peers(table, sets, name, &pods);
            from.push(format!("{} {} @{set} ", self.family.nft(), self.direction.peer));
        }
        from.extend(rule.peers.iter().filter_map(|peer| self.block(peer.ip_block.as_ref()?)));
        // The receiving Pod defines the meaning of a port's name.
        let receivers = if self.direction.of == PolicyType::Ingress { selected } else { &pods };
        let ports = self.ports(table, name, &rule.ports, receivers);
        if from.len() > 1 && ports.len() > 1 {
            let chain = format!("{name}-accept");
            table.chain(&chain, ports.iter().map(|port| format!("{port}accept")).collect());
            return from.iter().map(|from| format!("{from}jump {chain}")).collect();
        }
        let lines = |from| ports.iter().map(move |port| format!("{from}{port}accept"));
        from.iter().flat_map(lines).collect()
    }

    /// Returns the name of the set with these Pods' addresses. Adds it unless an earlier rule has the same Pods.
    fn add_peers(
        &self,
        table: &mut Table,
        sets: &mut PeerSets,
        name: &str,
        pods: &[(&Pod, IpAddr)],
    ) -> String {
        let addresses: BTreeSet<IpAddr> = pods.iter().map(|(_, ip)| *ip).collect();
        if let Some(set) = sets.get(&addresses) {
            return set.clone();
        }
        let set = format!("{name}-peers");
        table.set(&set, format!("type {};", address_type(self.family)));
        for ip in &addresses {
            table.element(&set, ip.to_string(), String::new());
        }
        sets.insert(addresses, set.clone());
        set
    }

    /// Returns the Pods of the cluster that a rule's peers select; all Pods if the rule has no peers.
    fn peers(&self, namespace: &str, rule: &Rule) -> Vec<(&Pod, IpAddr)> {
        let selectors: Vec<_> = rule
            .peers
            .iter()
            .filter(|peer| peer.ip_block.is_none())
            .map(PeerSelector::of)
            .collect();
        let pods = self.snapshot.pods.iter().copied().filter(|pod| {
            rule.peers.is_empty()
                || selectors
                    .iter()
                    .any(|peer| peer.matches(namespace, pod, self.snapshot.namespaces))
        });
        pods.filter_map(|pod| Some((pod, pod.address(self.family)?))).collect()
    }

    fn block(&self, block: &IpBlock) -> Option<String> {
        let (ip, peer) = (self.family.nft(), self.direction.peer);
        let parse =
            |text: &str| text.parse::<Cidr>().ok().filter(|cidr| cidr.family() == self.family);
        let mut matches = format!("{ip} {peer} {} ", parse(&block.cidr)?.network());
        for except in block.except.iter().filter_map(|except| parse(except)) {
            matches.push_str(&format!("{ip} {peer} != {} ", except.network()));
        }
        Some(matches)
    }

    fn ports(
        &self,
        table: &mut Table,
        name: &str,
        ports: &[Port],
        receivers: &[(&Pod, IpAddr)],
    ) -> Vec<String> {
        if ports.is_empty() {
            return vec![String::new()];
        }
        let named = format!("{name}-ports");
        let mut matches = BTreeSet::new();
        for port in ports {
            let protocol = port.protocol.lower();
            match &port.port {
                None => _ = matches.insert(format!("meta l4proto {protocol} ")),
                Some(IntOrString::Int(number)) => {
                    let end = port.end_port.map(|end| format!("-{end}")).unwrap_or_default();
                    matches.insert(format!("{protocol} dport {number}{end} "));
                }
                Some(IntOrString::String(text)) => {
                    self.add_named(table, &named, text, port.protocol, receivers);
                    matches.insert(format!(
                        "{} daddr . meta l4proto . th dport @{named} ",
                        self.family.nft()
                    ));
                }
            }
        }
        matches.into_iter().collect()
    }

    fn add_named(
        &self,
        table: &mut Table,
        set: &str,
        name: &str,
        protocol: Protocol,
        receivers: &[(&Pod, IpAddr)],
    ) {
        if !table.sets.contains_key(set) {
            table.set(
                set,
                format!("type {} . inet_proto . inet_service;", address_type(self.family)),
            );
        }
        for (pod, ip) in receivers {
            for number in pod.port_numbers(name, protocol) {
                table.element(
                    set,
                    format!("{ip} . {} . {number}", protocol.lower()),
                    String::new(),
                );
            }
        }
    }
}

/// A peer that selects Pods: in the policy's own namespace or in selected ones.
struct PeerSelector {
    namespaces: Option<Selector>,
    pods: Selector,
}

impl PeerSelector {
    fn of(peer: &Peer) -> Self {
        let pods = match (&peer.pod_selector, &peer.namespace_selector) {
            (Some(pods), _) => selector(pods),
            (None, Some(_)) => Selector::everything(),
            (None, None) => Selector::nothing(),
        };
        Self { namespaces: peer.namespace_selector.as_ref().map(selector), pods }
    }

    fn matches(&self, own: &str, pod: &Pod, namespaces: &Namespaces) -> bool {
        let namespace = &*pod.metadata.namespace;
        let fits = match &self.namespaces {
            None => namespace == own,
            Some(selector) => {
                namespaces.get(namespace).is_some_and(|labels| selector.matches(labels))
            }
        };
        fits && self.pods.matches(&pod.metadata.labels)
    }
}

/// Converts a selector. An invalid one, which the API server does not accept, matches nothing.
fn selector(selector: &LabelSelector) -> Selector {
    selector.to_selector().unwrap_or_else(|_| Selector::nothing())
}
