use std::net::IpAddr;

use super::{
    base::{CLUSTER_IPS, DEAD_NODE_PORTS, DEAD_SERVICES, FIREWALL_IPS, NODE_PORTS, SERVICE_IPS},
    port::Port,
};
use crate::{
    api::TrafficPolicy,
    endpoints::Endpoint,
    nft::{Table, address_type, bounded_name, digest},
};

pub(super) fn add(table: &mut Table, service_port: &Port<'_>) {
    let (meta, port) = (&service_port.service.metadata, service_port.port);
    let name = format!("{}/{}/{}/{}", meta.namespace, meta.name, port.protocol.lower(), port.name);
    Rules { service_port, name: with_digest(&name) }.add_to(table);
}

/// Prefixes a name with eight characters of its digest, as upstream's kube-proxy does. A proxy that takes over a table
/// does not replace elements that lead to chains with other names.
fn with_digest(name: &str) -> String {
    format!("{}-{name}", digest::<8>(name))
}

/// The rules of one Service port.
struct Rules<'a> {
    service_port: &'a Port<'a>,
    /// The common suffix of the port's chain names.
    name: String,
}

impl Rules<'_> {
    fn add_to(&self, table: &mut Table) {
        table.element(CLUSTER_IPS, self.service_port.cluster_ip.to_string(), String::new());
        self.add_internal(table);
        if self.service_port.is_external() {
            self.add_external(table);
        }
    }

    fn add_internal(&self, table: &mut Table) {
        let policy = self.service_port.service.spec.internal_traffic_policy;
        let key = self.key(self.service_port.cluster_ip);
        if self.service_port.choice.for_policy(policy).is_empty() {
            table.element(DEAD_SERVICES, key, self.refusal());
        } else {
            table.element(SERVICE_IPS, key, format!("goto {}", self.policy_chain(policy)));
            self.add_policy_chain(table, policy);
        }
    }

    /// Returns the verdict for traffic without an endpoint. Without any endpoint the client gets a reset or an ICMP
    /// error. If only the policy excludes the endpoints, the packet is dropped, because a load balancer may have sent
    /// it here only temporarily.
    fn refusal(&self) -> String {
        if self.service_port.choice.any {
            "drop".to_owned()
        } else {
            "goto reject-chain".to_owned()
        }
    }

    fn add_external(&self, table: &mut Table) {
        let (served, reachable) = (self.service_port.is_served(), self.service_port.is_reachable());
        let chain = format!("external-{}", self.name);
        let firewall = self.add_firewall(table);
        for ip in self.service_port.external_ips() {
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
            for ip in self.service_port.balancer_ips() {
                table.element(FIREWALL_IPS, self.key(ip), format!("goto {firewall}"));
            }
        }
        for port in self.service_port.node_ports() {
            let key = format!("{} . {port}", self.service_port.port.protocol.lower());
            if is_claimed(table, [NODE_PORTS, DEAD_NODE_PORTS], &key) {
                continue;
            }
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
        let policy = self.service_port.service.spec.external_traffic_policy;
        let cluster = self.policy_chain(TrafficPolicy::Cluster);
        let mut rules = Vec::new();
        self.add_policy_chain(table, TrafficPolicy::Cluster);
        if policy == TrafficPolicy::Cluster {
            // The endpoint may be on another node, so the answer has to come back through this node.
            rules.push("jump mark-for-masquerade".to_owned());
            rules.push(format!("goto {cluster}"));
        } else {
            if !self.service_port.choice.cluster.is_empty() {
                if let Some(local) =
                    self.service_port.config.local.rule(self.service_port.family, true)
                {
                    rules.push(format!(
                        "{local} goto {cluster} comment \"short-circuit pod traffic\""
                    ));
                }
                rules.push("fib saddr type local jump mark-for-masquerade comment \"masquerade local traffic\"".into());
                rules.push(format!(
                    "fib saddr type local goto {cluster} comment \"short-circuit local traffic\""
                ));
            }
            if !self.service_port.choice.local.is_empty() {
                self.add_policy_chain(table, TrafficPolicy::Local);
                rules.push(format!("goto {}", self.policy_chain(TrafficPolicy::Local)));
            }
        }
        table.chain(&chain, rules);
    }

    /// Adds the chain that drops traffic from outside `loadBalancerSourceRanges`, if there are any. All ports of a
    /// Service share the set of ranges, because thousands of ports times thousands of ranges would fill the memory.
    fn add_firewall(&self, table: &mut Table) -> Option<String> {
        let sources = self.service_port.sources()?;
        let chain = format!("firewall-{}", self.name);
        let meta = &self.service_port.service.metadata;
        let set = format!("sources-{}", with_digest(&format!("{}/{}", meta.namespace, meta.name)));
        let ip = self.service_port.family.nft();
        if !table.sets.contains_key(&set) {
            table.set(
                &set,
                format!("type {}; flags interval;", address_type(self.service_port.family)),
            );
            for source in sources {
                table.element(&set, source.clone(), String::new());
            }
        }
        table.chain(&chain, vec![format!("{ip} saddr @{set} return"), "drop".to_owned()]);
        Some(chain)
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> String {
        match policy {
            TrafficPolicy::Cluster => format!("service-{}", self.name),
            TrafficPolicy::Local => format!("local-{}", self.name),
        }
    }

    /// Adds the chain that chooses an endpoint, once for all rules that jump to it.
    fn add_policy_chain(&self, table: &mut Table, policy: TrafficPolicy) {
        let chain = self.policy_chain(policy);
        let endpoints = self.service_port.choice.for_policy(policy);
        if table.chains.contains_key(&chain) || endpoints.is_empty() {
            return;
        }
        let mut rules = Vec::new();
        if policy == self.service_port.service.spec.internal_traffic_policy {
            rules.extend(self.masquerade_rule());
        }
        if self.service_port.affinity().is_some() {
            let stick = |endpoint| {
                let chain = self.endpoint_chain(endpoint);
                format!("{} saddr @affinity-{chain} goto {chain}", self.service_port.family.nft())
            };
            rules.extend(endpoints.iter().map(stick));
        }
        let chains: Vec<_> =
            endpoints.iter().map(|endpoint| self.endpoint_chain(endpoint)).collect();
        rules.extend(random_jump(&chains));
        for endpoint in endpoints {
            self.add_endpoint_chain(table, endpoint);
        }
        table.chain(&chain, rules);
    }

    /// Returns the rule that masquerades outside traffic to the ClusterIP, so that answers come through this node.
    fn masquerade_rule(&self) -> Option<String> {
        let outside = if self.service_port.config.masquerade_all {
            String::new()
        } else {
            format!(" {}", self.service_port.config.local.rule(self.service_port.family, false)?)
        };
        let protocol = self.service_port.port.protocol.lower();
        let (ip, number) = (self.service_port.family.nft(), self.service_port.port.port);
        Some(format!(
            "{ip} daddr {} {protocol} dport {number}{outside} jump mark-for-masquerade",
            self.service_port.cluster_ip
        ))
    }

    fn add_endpoint_chain(&self, table: &mut Table, endpoint: &Endpoint<'_>) {
        let chain = self.endpoint_chain(endpoint);
        let ip = self.service_port.family.nft();
        // A Pod that reaches itself through the Service must see another source, or it would answer itself directly.
        let mut rules = vec![format!("{ip} saddr {} jump mark-for-masquerade", endpoint.ip)];
        if let Some(seconds) = self.service_port.affinity() {
            let set = format!("affinity-{chain}");
            // The timeout is in the rule and not in the set, because a set's declaration cannot be changed.
            rules.push(format!("update @{set} {{ {ip} saddr timeout {seconds}s }}"));
            let address = address_type(self.service_port.family);
            table.dynamic_set(&set, format!("type {address}; flags dynamic,timeout;"));
        }
        let target = endpoint.socket();
        rules.push(format!(
            "meta l4proto {} dnat to {target}",
            self.service_port.port.protocol.lower()
        ));
        table.chain(&chain, rules);
    }

    /// Names in nft cannot contain colons, so an IPv6 address is written with dots.
    fn endpoint_chain(&self, endpoint: &Endpoint<'_>) -> String {
        let ip = endpoint.ip.to_string().replace(':', ".");
        bounded_name(format!("endpoint-{}__{ip}/{}", self.name, endpoint.port))
    }

    fn key(&self, ip: IpAddr) -> String {
        format!(
            "{ip} . {} . {}",
            self.service_port.port.protocol.lower(),
            self.service_port.port.port
        )
    }
}

/// The number of endpoints above which a verdict map replaces a sequence of rules.
const LADDER: usize = 8;

/// Returns the rules that jump to one of `chains`, all equally likely.
///
/// Upstream writes a named verdict map for each Service. The kernel searches all maps of a table to name a new one;
/// with 5,000 Services that makes writing the table ten times slower.
fn random_jump(chains: &[String]) -> Vec<String> {
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

/// Reports whether an earlier Service already answers or rejects at `key`.
fn is_claimed(table: &Table, sets: [&str; 2], key: &str) -> bool {
    sets.iter().any(|set| table.has_element(set, key))
}

#[cfg(test)]
mod tests {
    #[test]
    fn chain_names_match_upstream() {
        // Names that upstream's kube-proxy v1.36.2 wrote.
        for name in [
            "2QRHZV4L-default/kubernetes/tcp/https",
            "FY5PMXPG-kube-system/kube-dns/udp/dns",
            "5R2LNDMP-default/px/tcp/",
        ] {
            let (_, plain) = name.split_once('-').unwrap();
            assert_eq!(super::with_digest(plain), name);
        }
    }
}
