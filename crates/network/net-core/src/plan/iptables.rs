//! Services and endpoints → the iptables chains of one address family, with upstream's names and structure, so that
//! either proxy can take over from the other.
//!
//! The chains have the same effect as the nftables table. A packet passes the rules of all Services until one matches,
//! and destinations are rewritten before the filter table sees them.

use std::net::IpAddr;

use super::{
    config::{Config, NodePorts},
    port::{self, Port},
};
use crate::{
    Family,
    api::{Service, ServicePort, TrafficPolicy},
    endpoints::{Endpoint, Slices},
    nft::digest,
    xtables::{Chains, Jump, STATE_CHAIN},
};

const NAT: &str = "nat";
const FILTER: &str = "filter";
const SERVICES: &str = "KUBE-SERVICES";
const EXTERNAL: &str = "KUBE-EXTERNAL-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";
const MARK: &str = "KUBE-MARK-MASQ";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const LOOPBACK: &str = "KUBE-FIREWALL";

/// The prefixes of the chains of Services.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"];

/// The jumps from built-in chains, as upstream writes them and as `iptables-save` prints them.
const JUMPS: [Jump; 13] = [
    jump(NAT, "OUTPUT", "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
    jump(NAT, "PREROUTING", "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
    jump(
        NAT,
        "POSTROUTING",
        "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
    ),
    jump(FILTER, "INPUT", "-j KUBE-FIREWALL"),
    jump(FILTER, "OUTPUT", "-j KUBE-FIREWALL"),
    jump(FILTER, "FORWARD", "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD"),
    jump(
        FILTER,
        "INPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" \
         -j KUBE-EXTERNAL-SERVICES",
    ),
    jump(
        FILTER,
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" \
         -j KUBE-EXTERNAL-SERVICES",
    ),
    jump(
        FILTER,
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    ),
    jump(
        FILTER,
        "OUTPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    ),
    jump(
        FILTER,
        "INPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
    ),
    jump(
        FILTER,
        "OUTPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
    ),
    jump(
        FILTER,
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
    ),
];

const fn jump(table: &'static str, from: &'static str, rule: &'static str) -> Jump {
    Jump { table, from, rule }
}

/// Reports whether a chain belongs to a proxy, ours or upstream's. The kubelet's chains stay, including [`LOOPBACK`].
/// So does [`MARK`], which is harmless and which CNI plugins may use.
pub fn is_proxys(chain: &str) -> bool {
    const NAMES: [&str; 8] = [
        SERVICES,
        EXTERNAL,
        NODE_PORTS,
        POSTROUTING,
        FORWARD,
        FIREWALL,
        STATE_CHAIN,
        "KUBE-PROXY-CANARY",
    ];
    NAMES.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// Returns the chains without any Service.
fn base(family: Family, config: &Config) -> Chains {
    let mut chains = Chains::new(family, &PREFIXES, &JUMPS);
    let mark = format!("{:#x}", 1u32 << config.masquerade_bit.min(31));
    chains.chain(NAT, MARK).push(format!("-j MARK --or-mark {mark}"));
    for (table, name) in [
        (NAT, SERVICES),
        (NAT, NODE_PORTS),
        (FILTER, SERVICES),
        (FILTER, EXTERNAL),
        (FILTER, FIREWALL),
        (FILTER, LOOPBACK),
    ] {
        chains.chain(table, name);
    }
    chains.chain(NAT, POSTROUTING).extend([
        format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
        // Remove the mark, so that a packet that passes a second time is not masqueraded again.
        format!("-j MARK --xor-mark {mark}"),
        format!(
            "{} -j MASQUERADE --random-fully",
            comment("kubernetes service traffic requiring SNAT")
        ),
    ]);
    chains.chain(FILTER, FORWARD).extend([
        format!(
            "{} -m mark --mark {mark}/{mark} -j ACCEPT",
            comment("kubernetes forwarding rules")
        ),
        format!(
            "{} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            comment("kubernetes forwarding conntrack rule")
        ),
    ]);
    if config.localhost_node_ports && family == Family::V4 {
        // A node that routes loopback addresses must not let other hosts reach programs that listen there.
        chains.chain(FILTER, LOOPBACK).push(format!(
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 {} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            comment("block incoming localnet connections")
        ));
    }
    chains
}

/// Returns the sealed chains of a family.
pub fn plan<'a>(
    family: Family,
    config: &'a Config,
    services: impl IntoIterator<Item = &'a Service>,
    slices: &Slices<'a>,
) -> Chains {
    let mut chains = base(family, config);
    for port in port::all(family, config, services, slices) {
        Rules { service_port: &port, name: name_of(port.service, port.port) }.add_to(&mut chains);
    }
    to_node_ports(&mut chains, config);
    chains.seal();
    chains
}

/// Adds the last rules: traffic that matches no Service's address may be for a node port.
fn to_node_ports(chains: &mut Chains, config: &Config) {
    let family = chains.family;
    let note =
        comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain");
    let local = "-m addrtype --dst-type LOCAL";
    let to = match (&config.node_ports, family) {
        (NodePorts::Addresses(addresses), _) => {
            let own = addresses.iter().filter(|ip| Family::of(**ip) == family);
            let mut own: Vec<_> = own.map(|ip| format!("-d {ip}")).collect();
            if config.localhost_node_ports && family == Family::V4 {
                own.push("-d 127.0.0.1".to_owned());
            }
            own
        }
        (NodePorts::All, Family::V4) if config.localhost_node_ports => vec![local.to_owned()],
        (NodePorts::All, Family::V4) => vec![format!("! -d 127.0.0.0/8 {local}")],
        (NodePorts::All, Family::V6) => vec![format!("! -d ::1/128 {local}")],
    };
    let rules = chains.chain(NAT, SERVICES);
    rules.extend(to.iter().map(|to| format!("{note} {to} -j {NODE_PORTS}")));
}

/// Returns a Service port's name in comments and digests, as upstream writes it.
fn name_of(service: &Service, port: &ServicePort) -> String {
    let meta = &service.metadata;
    match &*port.name {
        "" => format!("{}/{}", meta.namespace, meta.name),
        name => format!("{}/{}:{name}", meta.namespace, meta.name),
    }
}

fn comment(text: &str) -> String {
    let quoted = if text.contains(' ') { format!("\"{text}\"") } else { text.to_owned() };
    format!("-m comment --comment {quoted}")
}

/// The rules of one Service port.
struct Rules<'a> {
    service_port: &'a Port<'a>,
    name: String,
}

impl Rules<'_> {
    fn add_to(&self, chains: &mut Chains) {
        self.add_internal(chains);
        if self.service_port.is_external() {
            self.add_external(chains);
        }
    }

    fn add_internal(&self, chains: &mut Chains) {
        let policy = self.service_port.service.spec.internal_traffic_policy;
        let to = self.to(self.service_port.cluster_ip);
        if self.service_port.choice.for_policy(policy).is_empty() {
            let rule = format!("{} {to} {}", self.dead(), self.refusal());
            chains.chain(FILTER, SERVICES).push(rule);
            return;
        }
        let chain = self.policy_chain(policy);
        let note = comment(&format!("{} cluster IP", self.name));
        chains.chain(NAT, SERVICES).push(format!("{note} {to} -j {chain}"));
        self.add_policy_chain(chains, policy);
    }

    fn add_external(&self, chains: &mut Chains) {
        let served = self.service_port.is_served();
        let reachable = self.service_port.is_reachable();
        let external = self.chain("EXT", "");
        let spec = &self.service_port.service.spec;
        let balancer: Vec<IpAddr> = self.service_port.balancer_ips().collect();
        for ip in self.service_port.external_ips() {
            let kind = if balancer.contains(&ip) { "loadbalancer IP" } else { "external IP" };
            let to = self.to(ip);
            if reachable {
                let note = comment(&format!("{} {kind}", self.name));
                chains.chain(NAT, SERVICES).push(format!("{note} {to} -j {external}"));
            }
            if !served {
                let rule = format!("{} {to} {}", self.dead(), self.refusal());
                chains.chain(FILTER, EXTERNAL).push(rule);
            }
        }
        self.add_firewall(chains, &balancer);
        for port in self.service_port.node_ports() {
            let to = self.matching(port);
            if reachable {
                let note = comment(&self.name);
                chains.chain(NAT, NODE_PORTS).push(format!("{note} {to} -j {external}"));
            }
            if !served {
                let local = "-m addrtype --dst-type LOCAL";
                let rule = format!("{} {local} {to} {}", self.dead(), self.refusal());
                chains.chain(FILTER, EXTERNAL).push(rule);
            }
        }
        if reachable {
            self.add_external_chain(chains, &external, spec.external_traffic_policy);
        }
    }

    fn add_external_chain(&self, chains: &mut Chains, external: &str, policy: TrafficPolicy) {
        let cluster = self.policy_chain(TrafficPolicy::Cluster);
        self.add_policy_chain(chains, TrafficPolicy::Cluster);
        let mut rules = Vec::new();
        if policy == TrafficPolicy::Cluster {
            let note =
                comment(&format!("masquerade traffic for {} external destinations", self.name));
            rules.push(format!("{note} -j {MARK}"));
            rules.push(format!("-j {cluster}"));
        } else {
            if !self.service_port.choice.cluster.is_empty() {
                if let Some(pods) =
                    self.service_port.config.local.iptables(self.service_port.family, true)
                {
                    let note =
                        comment(&format!("pod traffic for {} external destinations", self.name));
                    rules.push(format!("{note} {pods} -j {cluster}"));
                }
                let local = "-m addrtype --src-type LOCAL";
                let note = |what: &str| {
                    comment(&format!("{what} for {} external destinations", self.name))
                };
                rules.push(format!("{} {local} -j {MARK}", note("masquerade LOCAL traffic")));
                rules.push(format!("{} {local} -j {cluster}", note("route LOCAL traffic")));
            }
            if !self.service_port.choice.local.is_empty() {
                self.add_policy_chain(chains, TrafficPolicy::Local);
                rules.push(format!("-j {}", self.policy_chain(TrafficPolicy::Local)));
            }
        }
        *chains.chain(NAT, external) = rules;
    }

    /// Drops traffic from outside `loadBalancerSourceRanges`, if there are any. All ports of a Service share the chain
    /// of the first one, because thousands of ports times thousands of ranges would fill the memory.
    fn add_firewall(&self, chains: &mut Chains, balancer: &[IpAddr]) {
        let Some(sources) = self.service_port.sources() else { return };
        let service = self.service_port.service;
        let first = service.spec.ports.first().unwrap_or(self.service_port.port);
        let shared = name_of(service, first);
        let chain = chain_name("FW", &format!("{shared}{}", first.protocol.lower()));
        let note = comment(&format!("{} loadbalancer IP", self.name));
        for ip in balancer {
            chains.chain(FILTER, FIREWALL).push(format!("{note} {} -j {chain}", self.to(*ip)));
        }
        if chains.has(FILTER, &chain) {
            return;
        }
        let note = comment(&format!("{shared} loadbalancer IP"));
        let rules = chains.chain(FILTER, &chain);
        rules.extend(sources.iter().map(|source| format!("{note} -s {source} -j RETURN")));
        let note =
            comment(&format!("other traffic to {shared} will be dropped by KUBE-PROXY-FIREWALL"));
        rules.push(format!("{note} -j DROP"));
    }

    /// Adds the chain that chooses an endpoint, once for all rules that jump to it.
    fn add_policy_chain(&self, chains: &mut Chains, policy: TrafficPolicy) {
        let chain = self.policy_chain(policy);
        let endpoints = self.service_port.choice.for_policy(policy);
        if chains.has(NAT, &chain) || endpoints.is_empty() {
            return;
        }
        let note = comment(&self.name);
        let mut rules = Vec::new();
        if policy == self.service_port.service.spec.internal_traffic_policy {
            rules.extend(self.masquerade_rule());
        }
        if let Some(seconds) = self.service_port.affinity() {
            rules.extend(endpoints.iter().map(|endpoint| {
                let to = self.endpoint_chain(endpoint);
                format!("{note} -m recent --name {to} --rcheck --seconds {seconds} --reap -j {to}")
            }));
        }
        for (n, endpoint) in endpoints.iter().enumerate() {
            let to = self.endpoint_chain(endpoint);
            let note = comment(&format!("{} -> {}", self.name, endpoint.socket()));
            rules.push(match endpoints.len() - n {
                1 => format!("{note} -j {to}"),
                // The remaining endpoints are equally likely.
                left => format!(
                    "{note} -m statistic --mode random --probability {:.10} -j {to}",
                    1.0 / left as f64
                ),
            });
            self.add_endpoint_chain(chains, endpoint, &to);
        }
        *chains.chain(NAT, &chain) = rules;
    }

    fn masquerade_rule(&self) -> Option<String> {
        let outside = if self.service_port.config.masquerade_all {
            String::new()
        } else {
            format!(
                " {}",
                self.service_port.config.local.iptables(self.service_port.family, false)?
            )
        };
        let note = comment(&format!("{} cluster IP", self.name));
        Some(format!("{note} {}{outside} -j {MARK}", self.to(self.service_port.cluster_ip)))
    }

    fn add_endpoint_chain(&self, chains: &mut Chains, endpoint: &Endpoint<'_>, chain: &str) {
        let note = comment(&self.name);
        // A Pod that reaches itself through the Service must see another source, or it would answer itself directly.
        let mut rules = vec![format!("{note} -s {} -j {MARK}", endpoint.ip)];
        let protocol = self.service_port.port.protocol.lower();
        let remember = match self.service_port.affinity() {
            Some(_) => format!(" -m recent --name {chain} --set"),
            None => String::new(),
        };
        rules.push(format!(
            "{note}{remember} -m {protocol} -p {protocol} -j DNAT --to-destination {}",
            endpoint.socket()
        ));
        *chains.chain(NAT, chain) = rules;
    }

    /// Returns the match for packets to this Service port at an address.
    fn to(&self, ip: IpAddr) -> String {
        format!("-d {ip} {}", self.matching(self.service_port.port.port))
    }

    fn matching(&self, number: u16) -> String {
        let protocol = self.service_port.port.protocol.lower();
        format!("-p {protocol} -m {protocol} --dport {number}")
    }

    fn dead(&self) -> String {
        let what = if self.service_port.choice.any {
            "has no local endpoints"
        } else {
            "has no endpoints"
        };
        comment(&format!("{} {what}", self.name))
    }

    /// Returns the verdict for traffic without an endpoint; see the nftables table.
    fn refusal(&self) -> &'static str {
        match (self.service_port.choice.any, self.service_port.port.protocol.lower()) {
            (true, _) => "-j DROP",
            (false, "tcp") => "-j REJECT --reject-with tcp-reset",
            (false, _) => "-j REJECT",
        }
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> String {
        match policy {
            TrafficPolicy::Cluster => self.chain("SVC", ""),
            TrafficPolicy::Local => self.chain("SVL", ""),
        }
    }

    fn endpoint_chain(&self, endpoint: &Endpoint<'_>) -> String {
        self.chain("SEP", &endpoint.socket())
    }

    /// Returns a chain's name: at most 28 characters, with a digest of the same text as upstream's.
    fn chain(&self, kind: &str, more: &str) -> String {
        let protocol = self.service_port.port.protocol.lower();
        chain_name(kind, &format!("{}{protocol}{more}", self.name))
    }
}

fn chain_name(kind: &str, text: &str) -> String {
    format!("KUBE-{kind}-{}", digest::<16>(text))
}
