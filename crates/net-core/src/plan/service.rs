use std::net::IpAddr;

use super::{
    base::{CLUSTER_IPS, DEAD_NODE_PORTS, DEAD_SERVICES, FIREWALL_IPS, NODE_PORTS, SERVICE_IPS},
    port::{Port, digest},
};
use crate::{Family, api::TrafficPolicy, endpoints::Endpoint, nft::Table};

pub(super) fn add(table: &mut Table, of: &Port<'_>) {
    let (meta, port) = (&of.service.metadata, of.port);
    let name = format!("{}/{}/{}/{}", meta.namespace, meta.name, port.protocol.lower(), port.name);
    Rules { of, name: marked(&name) }.add_to(table);
}

/// A name behind eight characters of its digest. Upstream's kube-proxy calls its chains so: one that takes a table over
/// does not replace an element that leads to a chain by another name.
fn marked(name: &str) -> String {
    format!("{}-{name}", digest::<8>(name))
}

/// The rules of one Service port.
struct Rules<'a> {
    of: &'a Port<'a>,
    /// The tail of all its chains' names.
    name: String,
}

impl Rules<'_> {
    fn add_to(&self, table: &mut Table) {
        table.element(CLUSTER_IPS, self.of.cluster_ip.to_string(), String::new());
        self.add_internal(table);
        if self.of.is_external() {
            self.add_external(table);
        }
    }

    fn add_internal(&self, table: &mut Table) {
        let policy = self.of.service.spec.internal_traffic_policy;
        let key = self.key(self.of.cluster_ip);
        if self.of.choice.for_policy(policy).is_empty() {
            table.element(DEAD_SERVICES, key, self.refusal());
        } else {
            table.element(SERVICE_IPS, key, format!("goto {}", self.policy_chain(policy)));
            self.add_policy_chain(table, policy);
        }
    }

    /// Nobody serves the port: the client is told. Others serve it, but policy keeps traffic on this node: the
    /// packet is dropped, since a balancer may have sent it here only for the moment.
    fn refusal(&self) -> String {
        if self.of.choice.any { "drop".to_owned() } else { "goto reject-chain".to_owned() }
    }

    fn add_external(&self, table: &mut Table) {
        let (served, reachable) = (self.of.is_served(), self.of.is_reachable());
        let chain = format!("external-{}", self.name);
        let firewall = self.add_firewall(table);
        for ip in self.of.external_ips() {
            let key = self.key(ip);
            if is_claimed(table, [SERVICE_IPS, DEAD_SERVICES], &key) {
                continue;
            }
            if reachable {
                table.element(SERVICE_IPS, key.clone(), format!("goto {chain}"));
            }
            if !served {
                table.element(DEAD_SERVICES, key, self.refusal());
            }
        }
        if let Some(firewall) = firewall {
            for ip in self.of.balancer_ips() {
                table.element(FIREWALL_IPS, self.key(ip), format!("goto {firewall}"));
            }
        }
        let port = self.of.node_port();
        let key = port.map(|port| format!("{} . {port}", self.of.port.protocol.lower()));
        let taken = |key: &String| is_claimed(table, [NODE_PORTS, DEAD_NODE_PORTS], key);
        if let Some(key) = key.filter(|key| !taken(key)) {
            if reachable {
                table.element(NODE_PORTS, key.clone(), format!("goto {chain}"));
            }
            if !served {
                table.element(DEAD_NODE_PORTS, key, self.refusal());
            }
        }
        if reachable {
            self.add_external_chain(table, chain);
        }
    }

    fn add_external_chain(&self, table: &mut Table, chain: String) {
        let policy = self.of.service.spec.external_traffic_policy;
        let cluster = self.policy_chain(TrafficPolicy::Cluster);
        let mut rules = Vec::new();
        self.add_policy_chain(table, TrafficPolicy::Cluster);
        if policy == TrafficPolicy::Cluster {
            // The endpoint may be on another node: the answer has to come back through this one.
            rules.push("jump mark-for-masquerade".to_owned());
            rules.push(format!("goto {cluster}"));
        } else {
            if !self.of.choice.cluster.is_empty() {
                if let Some(local) = self.of.config.local.rule(self.of.family, true) {
                    rules.push(format!(
                        "{local} goto {cluster} comment \"short-circuit pod traffic\""
                    ));
                }
                rules.push("fib saddr type local jump mark-for-masquerade comment \"masquerade local traffic\"".into());
                rules.push(format!(
                    "fib saddr type local goto {cluster} comment \"short-circuit local traffic\""
                ));
            }
            if !self.of.choice.local.is_empty() {
                self.add_policy_chain(table, TrafficPolicy::Local);
                rules.push(format!("goto {}", self.policy_chain(TrafficPolicy::Local)));
            }
        }
        table.chain(&chain, rules);
    }

    /// The chain that drops what comes from outside `loadBalancerSourceRanges`, if there are any.
    fn add_firewall(&self, table: &mut Table) -> Option<String> {
        let sources = self.of.sources()?;
        let chain = format!("firewall-{}", self.name);
        let ip = self.of.family.nft();
        let accept = sources.iter().map(|source| format!("{ip} saddr {source} return"));
        table.chain(&chain, accept.chain(["drop".to_owned()]).collect());
        Some(chain)
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> String {
        match policy {
            TrafficPolicy::Cluster => format!("service-{}", self.name),
            TrafficPolicy::Local => format!("local-{}", self.name),
        }
    }

    /// The chain that picks an endpoint; added once, whoever leads to it.
    fn add_policy_chain(&self, table: &mut Table, policy: TrafficPolicy) {
        let chain = self.policy_chain(policy);
        let endpoints = self.of.choice.for_policy(policy);
        if table.chains.contains_key(&chain) || endpoints.is_empty() {
            return;
        }
        let mut rules = Vec::new();
        if policy == self.of.service.spec.internal_traffic_policy {
            rules.extend(self.masquerade_rule());
        }
        if self.of.affinity().is_some() {
            let stick = |endpoint| {
                let chain = self.endpoint_chain(endpoint);
                format!("{} saddr @affinity-{chain} goto {chain}", self.of.family.nft())
            };
            rules.extend(endpoints.iter().map(stick));
        }
        let chains: Vec<_> =
            endpoints.iter().map(|endpoint| self.endpoint_chain(endpoint)).collect();
        rules.extend(pick(&chains));
        for endpoint in endpoints {
            self.add_endpoint_chain(table, endpoint);
        }
        table.chain(&chain, rules);
    }

    /// Traffic to the ClusterIP from outside the cluster has to come back through this node.
    fn masquerade_rule(&self) -> Option<String> {
        let outside = if self.of.config.masquerade_all {
            String::new()
        } else {
            format!(" {}", self.of.config.local.rule(self.of.family, false)?)
        };
        let protocol = self.of.port.protocol.lower();
        let (ip, number) = (self.of.family.nft(), self.of.port.port);
        Some(format!(
            "{ip} daddr {} {protocol} dport {number}{outside} jump mark-for-masquerade",
            self.of.cluster_ip
        ))
    }

    fn add_endpoint_chain(&self, table: &mut Table, endpoint: &Endpoint<'_>) {
        let chain = self.endpoint_chain(endpoint);
        let ip = self.of.family.nft();
        // A Pod that reaches itself must see another source, or it would answer itself directly.
        let mut rules = vec![format!("{ip} saddr {} jump mark-for-masquerade", endpoint.ip)];
        if let Some(seconds) = self.of.affinity() {
            let set = format!("affinity-{chain}");
            // The time-out stands in the rule and not in the set, whose declaration could not be changed.
            rules.push(format!("update @{set} {{ {ip} saddr timeout {seconds}s }}"));
            let address = if self.of.family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
            table.dynamic_set(&set, format!("type {address}; flags dynamic,timeout;"));
        }
        let target = endpoint.socket();
        rules.push(format!("meta l4proto {} dnat to {target}", self.of.port.protocol.lower()));
        table.chain(&chain, rules);
    }

    /// Colons are no part of nft's names, so an IPv6 address is written with dots.
    fn endpoint_chain(&self, endpoint: &Endpoint<'_>) -> String {
        let ip = endpoint.ip.to_string().replace(':', ".");
        format!("endpoint-{}__{ip}/{}", self.name, endpoint.port)
    }

    fn key(&self, ip: IpAddr) -> String {
        format!("{ip} . {} . {}", self.of.port.protocol.lower(), self.of.port.port)
    }
}

/// Above this many endpoints, one look-up is better than a ladder of rules.
const LADDER: usize = 8;

/// The rules that go to one of `chains`, each as likely as the others.
///
/// A verdict map of its own for each Service is what upstream writes, but the kernel looks through all maps of a
/// table to name a new one: with 5,000 Services that makes a table ten times as slow to write.
fn pick(chains: &[String]) -> Vec<String> {
    let count = chains.len();
    if count > LADDER {
        let verdicts = chains.iter().enumerate().map(|(n, chain)| format!("{n} : goto {chain}"));
        let verdicts = verdicts.collect::<Vec<_>>().join(" , ");
        return vec![format!("numgen random mod {count} vmap {{ {verdicts} }}")];
    }
    let step = |(n, chain): (usize, &String)| match count - n {
        1 => format!("goto {chain}"),
        left => format!("numgen random mod {left} 0 goto {chain}"),
    };
    chains.iter().enumerate().map(step).collect()
}

/// Whether a Service before this one, in order, answers or refuses at `key`.
fn is_claimed(table: &Table, sets: [&str; 2], key: &str) -> bool {
    sets.iter().any(|set| table.has_element(set, key))
}

#[cfg(test)]
mod tests {
    #[test]
    fn chains_are_called_as_upstream_calls_them() {
        // As upstream's kube-proxy v1.36.2 was seen to write them.
        for name in [
            "2QRHZV4L-default/kubernetes/tcp/https",
            "FY5PMXPG-kube-system/kube-dns/udp/dns",
            "5R2LNDMP-default/px/tcp/",
        ] {
            let (_, plain) = name.split_once('-').unwrap();
            assert_eq!(super::marked(plain), name);
        }
    }
}
