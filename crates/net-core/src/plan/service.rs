use std::net::IpAddr;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use super::{
    Config,
    base::{CLUSTER_IPS, DEAD_NODE_PORTS, DEAD_SERVICES, FIREWALL_IPS, NODE_PORTS, SERVICE_IPS},
};
use crate::{
    Cidr, Family,
    api::{Affinity, Service, ServicePort, ServiceType, TrafficPolicy},
    endpoints::{Choice, Endpoint, Slices, balancer_addresses},
    nft::Table,
};

/// One Service port in one family, with everything its rules depend on.
struct Port<'a> {
    config: &'a Config,
    service: &'a Service,
    port: &'a ServicePort,
    family: Family,
    /// The tail of all its chains' names.
    name: String,
    cluster_ip: IpAddr,
    choice: Choice<'a>,
}

pub(super) fn add(
    table: &mut Table,
    config: &Config,
    service: &Service,
    port: &ServicePort,
    slices: &Slices<'_>,
) {
    let family = table.family;
    // Objects from before dual stack have only the singular field.
    let ips = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    let Some(cluster_ip) = addresses(ips, family).next() else { return };
    let endpoints = slices.endpoints(service, port, family, &config.node);
    let meta = &service.metadata;
    let port = Port {
        config,
        service,
        port,
        family,
        name: marked(&format!(
            "{}/{}/{}/{}",
            meta.namespace,
            meta.name,
            port.protocol.lower(),
            port.name
        )),
        cluster_ip,
        choice: Choice::make(&endpoints, &config.node, config.zone.as_deref()),
    };
    port.add_to(table);
}

/// A name behind the first 40 bits of its SHA-256 in base 32. Upstream's kube-proxy calls its chains so: one that takes
/// a table over does not replace an element that leads to a chain by another name.
fn marked(name: &str) -> String {
    format!("{}-{name}", BASE32_NOPAD.encode(&Sha256::digest(name)[..5]))
}

fn addresses<'a>(
    texts: impl IntoIterator<Item = &'a String>,
    family: Family,
) -> impl Iterator<Item = IpAddr> {
    let parsed = texts.into_iter().filter_map(|text| text.parse::<IpAddr>().ok());
    parsed.filter(move |ip| Family::of(*ip) == family)
}

impl Port<'_> {
    fn add_to(&self, table: &mut Table) {
        table.element(CLUSTER_IPS, self.cluster_ip.to_string(), String::new());
        self.add_internal(table);
        if self.is_external() {
            self.add_external(table);
        }
    }

    fn is_external(&self) -> bool {
        self.service.spec.kind == ServiceType::LoadBalancer
            || self.port.node_port != 0
            || !self.service.spec.external_ips.is_empty()
    }

    fn add_internal(&self, table: &mut Table) {
        let policy = self.service.spec.internal_traffic_policy;
        let key = self.key(self.cluster_ip);
        if self.choice.for_policy(policy).is_empty() {
            table.element(DEAD_SERVICES, key, self.refusal());
        } else {
            table.element(SERVICE_IPS, key, format!("goto {}", self.policy_chain(policy)));
            self.add_policy_chain(table, policy);
        }
    }

    /// Nobody serves the port: the client is told. Others serve it, but policy keeps traffic on this node: the
    /// packet is dropped, since a balancer may have sent it here only for the moment.
    fn refusal(&self) -> String {
        if self.choice.any { "drop".to_owned() } else { "goto reject-chain".to_owned() }
    }

    fn add_external(&self, table: &mut Table) {
        let spec = &self.service.spec;
        let served = !self.choice.for_policy(spec.external_traffic_policy).is_empty();
        // With the Local policy, this node's own traffic is still served by any endpoint.
        let reachable = served || (self.choice.any && !self.choice.cluster.is_empty());
        let chain = format!("external-{}", self.name);
        let firewall = self.add_firewall(table);
        for ip in self.external_ips() {
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
            for ip in self.balancer_ips() {
                table.element(FIREWALL_IPS, self.key(ip), format!("goto {firewall}"));
            }
        }
        let key = format!("{} . {}", self.port.protocol.lower(), self.port.node_port);
        if self.port.node_port != 0 && !is_claimed(table, [NODE_PORTS, DEAD_NODE_PORTS], &key) {
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
        let policy = self.service.spec.external_traffic_policy;
        let cluster = self.policy_chain(TrafficPolicy::Cluster);
        let mut rules = Vec::new();
        self.add_policy_chain(table, TrafficPolicy::Cluster);
        if policy == TrafficPolicy::Cluster {
            // The endpoint may be on another node: the answer has to come back through this one.
            rules.push("jump mark-for-masquerade".to_owned());
            rules.push(format!("goto {cluster}"));
        } else {
            if !self.choice.cluster.is_empty() {
                if let Some(local) = self.config.local.rule(self.family, true) {
                    rules.push(format!(
                        "{local} goto {cluster} comment \"short-circuit pod traffic\""
                    ));
                }
                rules.push("fib saddr type local jump mark-for-masquerade comment \"masquerade local traffic\"".into());
                rules.push(format!(
                    "fib saddr type local goto {cluster} comment \"short-circuit local traffic\""
                ));
            }
            if !self.choice.local.is_empty() {
                self.add_policy_chain(table, TrafficPolicy::Local);
                rules.push(format!("goto {}", self.policy_chain(TrafficPolicy::Local)));
            }
        }
        table.chain(&chain, rules);
    }

    /// The chain that drops what comes from outside `loadBalancerSourceRanges`, if there are any.
    fn add_firewall(&self, table: &mut Table) -> Option<String> {
        let spec = &self.service.spec;
        let ranges = spec.load_balancer_source_ranges.iter();
        let ranges: Vec<Cidr> =
            ranges.filter_map(|range| range.trim().parse::<Cidr>().ok()).collect();
        let ranges: Vec<_> =
            ranges.into_iter().filter(|range| range.family() == self.family).collect();
        if spec.kind != ServiceType::LoadBalancer
            || ranges.is_empty()
            || self.balancer_ips().next().is_none()
        {
            return None;
        }
        let chain = format!("firewall-{}", self.name);
        let mut sources: Vec<_> = ranges.iter().map(|range| range.network().to_string()).collect();
        // A node reaches its own balancer's address when the balancer leaves the source as it is.
        if ranges.iter().any(|range| self.config.local_addresses().any(|ip| range.contains(ip))) {
            sources.extend(self.balancer_ips().map(|ip| Cidr::host(ip).to_string()));
        }
        sources.sort();
        sources.dedup();
        let ip = self.family.nft();
        let accept = sources.iter().map(|source| format!("{ip} saddr {source} return"));
        table.chain(&chain, accept.chain(["drop".to_owned()]).collect());
        Some(chain)
    }

    fn external_ips(&self) -> impl Iterator<Item = IpAddr> {
        addresses(&self.service.spec.external_ips, self.family).chain(self.balancer_ips())
    }

    fn balancer_ips(&self) -> impl Iterator<Item = IpAddr> {
        balancer_addresses(self.service).filter(|ip| Family::of(*ip) == self.family)
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
        let endpoints = self.choice.for_policy(policy);
        if table.chains.contains_key(&chain) || endpoints.is_empty() {
            return;
        }
        let mut rules = Vec::new();
        if policy == self.service.spec.internal_traffic_policy {
            rules.extend(self.masquerade_rule());
        }
        if self.is_sticky() {
            let stick = |endpoint| {
                let chain = self.endpoint_chain(endpoint);
                format!("{} saddr @affinity-{chain} goto {chain}", self.family.nft())
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
        let outside = if self.config.masquerade_all {
            String::new()
        } else {
            format!(" {}", self.config.local.rule(self.family, false)?)
        };
        let protocol = self.port.protocol.lower();
        let (ip, number) = (self.family.nft(), self.port.port);
        Some(format!(
            "{ip} daddr {} {protocol} dport {number}{outside} jump mark-for-masquerade",
            self.cluster_ip
        ))
    }

    fn add_endpoint_chain(&self, table: &mut Table, endpoint: &Endpoint<'_>) {
        let chain = self.endpoint_chain(endpoint);
        let ip = self.family.nft();
        // A Pod that reaches itself must see another source, or it would answer itself directly.
        let mut rules = vec![format!("{ip} saddr {} jump mark-for-masquerade", endpoint.ip)];
        if self.is_sticky() {
            let seconds = self.service.spec.session_affinity_config.client_ip.timeout_seconds;
            let set = format!("affinity-{chain}");
            // The time-out stands in the rule and not in the set, whose declaration could not be changed.
            rules.push(format!("update @{set} {{ {ip} saddr timeout {seconds}s }}"));
            let address = if self.family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
            table.dynamic_set(&set, format!("type {address}; flags dynamic,timeout;"));
        }
        let target = socket(endpoint.ip, endpoint.port);
        rules.push(format!("meta l4proto {} dnat to {target}", self.port.protocol.lower()));
        table.chain(&chain, rules);
    }

    fn is_sticky(&self) -> bool {
        self.service.spec.session_affinity == Affinity::ClientIP
    }

    /// Colons are no part of nft's names, so an IPv6 address is written with dots.
    fn endpoint_chain(&self, endpoint: &Endpoint<'_>) -> String {
        let ip = endpoint.ip.to_string().replace(':', ".");
        format!("endpoint-{}__{ip}/{}", self.name, endpoint.port)
    }

    fn key(&self, ip: IpAddr) -> String {
        format!("{ip} . {} . {}", self.port.protocol.lower(), self.port.port)
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

impl Config {
    fn local_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let addresses = match &self.node_ports {
            super::NodePorts::All => &[][..],
            super::NodePorts::Addresses(addresses) => addresses,
        };
        addresses.iter().copied()
    }
}

fn socket(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
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
