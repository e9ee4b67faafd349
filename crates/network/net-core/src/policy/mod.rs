//! NetworkPolicies → the nftables table that allows traffic to and from this node's Pods.
//!
//! A Pod that a policy selects for a direction is isolated in that direction: only traffic that a policy allows, and
//! answers to it, pass. Egress and ingress are separate base chains, because traffic that one accepts must still pass
//! the other. Traffic from the node to its own Pods is never filtered, because probes come from the node.
//!
//! The table has two maps from Pod addresses to the Pods' chains. A Pod's chain jumps to the chains of its policies and
//! ends with `drop`. A policy's chain accepts. Sets hold the peers' addresses.
//!
//! The rules of a namespace are limited ([`MAX_COST`]), because its authors must not keep a node from writing the rules
//! of others. Beyond the limit, all Pods of the namespace are isolated, and its further policies accept nothing.

pub mod api;

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use api_meta::{IntOrString, LabelSelector, Selector};

use crate::{
    Cidr, Family,
    api::Protocol,
    nft::{Table, address_type, bounded_name},
};
use api::{IpBlock, Namespaces, NetworkPolicy, Peer, Pod, PolicyType, Port, Rule};

/// The table's name. It differs from other implementations', so that theirs stay in place.
pub const TABLE: &str = "windlass-policy";

/// The limit for the rules of a namespace, for each family and direction: the number of comparisons of a selector's
/// requirements with labels. A line or an element of a set counts for [`LINE_COST`] of them.
const MAX_COST: usize = 1 << 22;
const LINE_COST: usize = 1 << 6;

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

/// The rules of a family.
#[derive(Debug, PartialEq, Eq)]
pub struct Rules {
    /// The sealed table.
    pub table: Table,
    /// The namespaces whose policies exceed the limit.
    pub exceeded: BTreeSet<Arc<str>>,
}

/// Returns the rules of a family.
pub fn plan(family: Family, snapshot: &Snapshot<'_>) -> Rules {
    let mut table = base(family);
    let mut exceeded = BTreeSet::new();
    let mut policies = snapshot.policies.clone();
    policies.sort_by_key(|policy| (&policy.metadata.namespace, &policy.metadata.name));
    let mut pods: HashMap<&str, Vec<(&Pod, IpAddr)>> = HashMap::new();
    for pod in &snapshot.pods {
        if let Some(ip) = pod.address(family) {
            pods.entry(&pod.metadata.namespace).or_default().push((pod, ip));
        }
    }
    for direction in [INGRESS, EGRESS] {
        for of_namespace in policies.chunk_by(|a, b| a.metadata.namespace == b.metadata.namespace) {
            let (budget, sets) = (RefCell::new(MAX_COST), RefCell::default());
            let plan = Plan { family, snapshot, pods: &pods, direction: &direction, budget, sets };
            if plan.add_to(&mut table, of_namespace).is_err() {
                exceeded
                    .extend(of_namespace.first().map(|policy| policy.metadata.namespace.clone()));
            }
        }
    }
    table.seal();
    Rules { table, exceeded }
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

/// The names of the sets of peers, by the addresses in them.
type PeerSets = HashMap<BTreeSet<IpAddr>, String>;

/// Pods with their addresses.
type Addressed<'a> = Vec<(&'a Pod, IpAddr)>;

/// The error of rules that exceed the limit.
#[derive(Debug)]
struct Exceeded;

/// The plan for the policies of a namespace in one direction.
struct Plan<'a> {
    family: Family,
    snapshot: &'a Snapshot<'a>,
    /// The Pods with an address of the family, by namespace.
    pods: &'a HashMap<&'a str, Addressed<'a>>,
    direction: &'a Direction,
    /// The part of [`MAX_COST`] that is left.
    budget: RefCell<usize>,
    sets: RefCell<PeerSets>,
}

impl<'a> Plan<'a> {
    fn spend(&self, cost: usize) -> Result<(), Exceeded> {
        let mut budget = self.budget.borrow_mut();
        let left = budget.checked_sub(cost);
        *budget = left.unwrap_or_default();
        left.map(drop).ok_or(Exceeded)
    }

    /// Adds the rules of the policies. If they exceed the limit, all Pods of the namespace are isolated.
    fn add_to(&self, table: &mut Table, policies: &[&NetworkPolicy]) -> Result<(), Exceeded> {
        // Each isolated Pod's address, with the chains of the policies that select it.
        let mut isolated: BTreeMap<IpAddr, (&Pod, Vec<String>)> = BTreeMap::new();
        let added = self.add_policies(table, policies, &mut isolated);
        if let (Err(Exceeded), Some(policy)) = (&added, policies.first()) {
            for (pod, ip) in self.pods_here(&policy.metadata.namespace) {
                isolated.entry(ip).or_insert((pod, Vec::new()));
            }
        }
        for (ip, (pod, chains)) in isolated {
            let meta = &pod.metadata;
            let name = format!("pod-{}-{}/{}", self.direction.short, meta.namespace, meta.name);
            let name = bounded_name(name);
            // A Pod may reach itself through a Service; no policy may prevent that.
            let itself = format!("{} {} {ip} accept", self.family.nft(), self.direction.peer);
            let jumps = chains.iter().map(|chain| format!("jump {chain}"));
            let rules = std::iter::once(itself).chain(jumps).chain(["drop".to_owned()]).collect();
            table.chain(&name, rules);
            table.element(self.direction.map, ip.to_string(), format!("goto {name}"));
        }
        added
    }

    fn add_policies(
        &self,
        table: &mut Table,
        policies: &[&NetworkPolicy],
        isolated: &mut BTreeMap<IpAddr, (&'a Pod, Vec<String>)>,
    ) -> Result<(), Exceeded> {
        for policy in policies.iter().filter(|policy| policy.spec.is_of(self.direction.of)) {
            let selected = self.selected(policy)?;
            if selected.is_empty() {
                continue;
            }
            self.spend(selected.len() * LINE_COST)?;
            let chain = self.add_policy(table, policy, &selected)?;
            for (pod, ip) in selected {
                isolated.entry(ip).or_insert((pod, Vec::new())).1.push(chain.clone());
            }
        }
        Ok(())
    }

    /// Returns this node's Pods of a namespace.
    fn pods_here(&self, namespace: &str) -> Addressed<'a> {
        let pods = self.pods.get(namespace).into_iter().flatten();
        pods.filter(|(pod, _)| *pod.spec.node_name == *self.snapshot.node).copied().collect()
    }

    /// Returns this node's Pods that the policy isolates.
    fn selected(&self, policy: &NetworkPolicy) -> Result<Addressed<'a>, Exceeded> {
        let namespace = &*policy.metadata.namespace;
        let selector = selector(&policy.spec.pod_selector);
        self.spend(cost(&selector) * (1 + self.pods.get(namespace).map_or(0, Vec::len)))?;
        let mut pods = self.pods_here(namespace);
        pods.retain(|(pod, _)| selector.matches(&pod.metadata.labels));
        Ok(pods)
    }

    fn add_policy(
        &self,
        table: &mut Table,
        policy: &NetworkPolicy,
        selected: &[(&Pod, IpAddr)],
    ) -> Result<String, Exceeded> {
        let meta = &policy.metadata;
        let name = format!("policy-{}-{}/{}", self.direction.short, meta.namespace, meta.name);
        let name = bounded_name(name);
        let list = if self.direction.of == PolicyType::Ingress {
            &policy.spec.ingress
        } else {
            &policy.spec.egress
        };
        let mut rules = Vec::new();
        for (number, rule) in list.iter().enumerate() {
            let name = format!("{name}/{number}");
            rules.extend(self.add_rule(table, &name, &meta.namespace, rule, selected)?);
        }
        table.chain(&name, rules);
        Ok(name)
    }

    /// Adds the sets of a rule and returns its lines. There are as many lines as the rule has peers and ports: with a
    /// line for each pair of them, a small object could fill the machine's memory.
    fn add_rule(
        &self,
        table: &mut Table,
        name: &str,
        namespace: &str,
        rule: &Rule,
        selected: &[(&Pod, IpAddr)],
    ) -> Result<Vec<String>, Exceeded> {
        self.spend((1 + rule.peers.len() + rule.ports.len()) * LINE_COST)?;
        let pods = self.peers(namespace, rule)?;
        // The receiving Pod defines the meaning of a port's name.
        let receivers = if self.direction.of == PolicyType::Ingress { selected } else { &pods };
        let ports = self.ports(table, name, &rule.ports, receivers)?;
        let blocks = || rule.peers.iter().filter_map(|peer| peer.ip_block.as_ref());
        let mut accept: Vec<_> = ports.iter().map(|port| format!("{port}accept")).collect();
        if accept.len() > 1 && (rule.peers.len() > 1 || blocks().any(|b| !b.except.is_empty())) {
            let chain = format!("{name}-accept");
            table.chain(&chain, std::mem::replace(&mut accept, vec![format!("jump {chain}")]));
        }
        let mut lines = Vec::new();
        if rule.peers.is_empty() {
            lines.extend(accept.iter().cloned());
        } else if !pods.is_empty() {
            let set = self.add_peers(table, name, &pods)?;
            let from = format!("{} {} @{set}", self.family.nft(), self.direction.peer);
            lines.extend(accept.iter().map(|accept| format!("{from} {accept}")));
        }
        for (number, block) in blocks().enumerate() {
            let chain = format!("{name}-block{number}");
            lines.extend(self.add_block(table, &chain, block, &accept)?);
        }
        Ok(lines)
    }

    /// Returns the lines of an address range. One with exceptions gets a chain that returns for each of them, because
    /// the kernel limits the matches of a rule.
    fn add_block(
        &self,
        table: &mut Table,
        chain: &str,
        block: &IpBlock,
        accept: &[String],
    ) -> Result<Vec<String>, Exceeded> {
        self.spend(block.except.len() * LINE_COST)?;
        let parse =
            |text: &str| text.parse::<Cidr>().ok().filter(|cidr| cidr.family() == self.family);
        let Some(cidr) = parse(&block.cidr) else { return Ok(Vec::new()) };
        let from = |cidr: Cidr| {
            format!("{} {} {}", self.family.nft(), self.direction.peer, cidr.network())
        };
        let except = block.except.iter().filter_map(|except| parse(except));
        let mut rules: Vec<_> = except.map(|except| format!("{} return", from(except))).collect();
        if rules.is_empty() {
            return Ok(accept.iter().map(|accept| format!("{} {accept}", from(cidr))).collect());
        }
        rules.extend(accept.iter().cloned());
        table.chain(chain, rules);
        Ok(vec![format!("{} jump {chain}", from(cidr))])
    }

    /// Returns the name of the set with these Pods' addresses. Adds it unless an earlier rule has the same Pods.
    fn add_peers(
        &self,
        table: &mut Table,
        name: &str,
        pods: &[(&Pod, IpAddr)],
    ) -> Result<String, Exceeded> {
        let addresses: BTreeSet<IpAddr> = pods.iter().map(|(_, ip)| *ip).collect();
        if let Some(set) = self.sets.borrow().get(&addresses) {
            return Ok(set.clone());
        }
        self.spend(addresses.len() * LINE_COST)?;
        let set = format!("{name}-peers");
        table.set(&set, format!("type {};", address_type(self.family)));
        for ip in &addresses {
            table.element(&set, ip.to_string(), String::new());
        }
        self.sets.borrow_mut().insert(addresses, set.clone());
        Ok(set)
    }

    /// Returns the Pods of the cluster that a rule's peers select. Without peers these are all Pods, which only the
    /// named ports of an egress rule depend on.
    fn peers(&self, namespace: &str, rule: &Rule) -> Result<Addressed<'a>, Exceeded> {
        let mut found: BTreeMap<IpAddr, &Pod> = BTreeMap::new();
        let is_named = |port: &Port| matches!(port.port, Some(IntOrString::String(_)));
        if rule.peers.is_empty() {
            let needed = self.direction.of == PolicyType::Egress && rule.ports.iter().any(is_named);
            if !needed {
                return Ok(Vec::new());
            }
            self.spend(self.snapshot.pods.len())?;
            return Ok(self.pods.values().flatten().copied().collect());
        }
        for peer in rule.peers.iter().filter(|peer| peer.ip_block.is_none()) {
            let peer = PeerSelector::of(peer);
            for pods in self.namespaces(namespace, &peer)? {
                self.spend(cost(&peer.pods) * pods.len())?;
                let pods = pods.iter().filter(|(pod, _)| peer.pods.matches(&pod.metadata.labels));
                found.extend(pods.map(|(pod, ip)| (*ip, *pod)));
            }
        }
        Ok(found.into_iter().map(|(ip, pod)| (pod, ip)).collect())
    }

    /// Returns the Pods of each namespace that a peer selects.
    fn namespaces(
        &self,
        own: &str,
        peer: &PeerSelector,
    ) -> Result<Vec<&'a Addressed<'a>>, Exceeded> {
        let Some(selector) = &peer.namespaces else {
            return Ok(self.pods.get(own).into_iter().collect());
        };
        self.spend(cost(selector) * self.snapshot.namespaces.len())?;
        let matching =
            self.snapshot.namespaces.iter().filter(|(_, labels)| selector.matches(labels));
        Ok(matching.filter_map(|(namespace, _)| self.pods.get(&**namespace)).collect())
    }

    fn ports(
        &self,
        table: &mut Table,
        name: &str,
        ports: &[Port],
        receivers: &[(&Pod, IpAddr)],
    ) -> Result<Vec<String>, Exceeded> {
        if ports.is_empty() {
            return Ok(vec![String::new()]);
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
                    self.spend(receivers.len() * LINE_COST)?;
                    self.add_named(table, &named, text, port.protocol, receivers);
                    matches.insert(format!(
                        "{} daddr . meta l4proto . th dport @{named} ",
                        self.family.nft()
                    ));
                }
            }
        }
        Ok(matches.into_iter().collect())
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
}

/// Returns the cost of comparing a selector with labels.
fn cost(selector: &Selector) -> usize {
    selector.requirements().len().max(1)
}

/// Converts a selector. An invalid one, which the API server does not accept, matches nothing.
fn selector(selector: &LabelSelector) -> Selector {
    selector.to_selector().unwrap_or_else(|_| Selector::nothing())
}
