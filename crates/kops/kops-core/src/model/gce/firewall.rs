//! Firewall rules between the machines.

use api_meta::Tree as _;

use super::{context::Context, graph::Model};
use crate::{
    cluster::{Cluster as _, Dns},
    error::Error,
    gce::{Allowed, FirewallRule},
    model::queries::has_cilium_etcd,
};

/// The ranges from which GCE checks the health of machines.
/// <https://cloud.google.com/load-balancing/docs/health-checks>
const HEALTH_CHECKS: [&str; 4] =
    ["35.191.0.0/16", "130.211.0.0/22", "209.85.204.0/22", "209.85.152.0/22"];
const PROTOCOLS: [&str; 6] = ["tcp", "udp", "icmp", "esp", "ah", "sctp"];
/// GCE knows no name of ICMPv6, so its number is used.
const ICMP_V6: &str = "58";
const ANY_V4: &str = "0.0.0.0/0";
const ANY_V6: &str = "::/0";

pub(super) const API: u16 = 443;
pub(super) const KOPS_CONTROLLER: u16 = 3988;
pub(super) const CILIUM_ETCD: u16 = 4003;
const KUBELET: u16 = 10250;
const VXLAN: u16 = 8472;
const BGP: u16 = 179;
/// The ports by which dns-controller and protokube gossip.
const GOSSIP: [u16; 2] = [3993, 4000];
/// The ports of metrics of kube-controller-manager, kube-scheduler, kube-proxy and etcd.
const METRICS: [u16; 4] = [10257, 10259, 10249, 2382];

impl Context<'_> {
    /// Returns a rule without source and traffic.
    pub(super) fn rule(&self, target_tags: Vec<String>) -> FirewallRule {
        FirewallRule {
            network: self.network(),
            allowed: Vec::new(),
            source_ranges: Vec::new(),
            source_tags: Vec::new(),
            target_tags,
            disabled: false,
        }
    }

    /// Returns all protocols between machines.
    pub(super) fn all_protocols(&self) -> Vec<Allowed> {
        let tunnel = self.spec.has("networking.calico").then_some("ipip");
        PROTOCOLS.into_iter().chain(tunnel).map(Allowed::all).collect()
    }

    /// Adds a rule as one for IPv4 and one for IPv6, which GCE does not mix. A rule without a range would allow all, so
    /// it is disabled.
    pub(super) fn add_rules(
        &self,
        model: &mut Model,
        name: &str,
        rule: &FirewallRule,
    ) -> Result<(), Error> {
        let (v6, v4): (Vec<_>, Vec<_>) =
            rule.source_ranges.iter().cloned().partition(|range| range.contains(':'));
        let suffixed = format!("{name}-ipv6");
        for (name, ranges, any, is_v6) in [(name, v4, ANY_V4, false), (&suffixed, v6, ANY_V6, true)]
        {
            let mut rule = rule.clone();
            if rule.source_tags.is_empty() {
                rule.disabled = ranges.is_empty();
                rule.source_ranges = if ranges.is_empty() { vec![any.to_owned()] } else { ranges };
            }
            for allowed in rule.allowed.iter_mut().filter(|one| is_v6 && one.protocol == "icmp") {
                allowed.protocol = ICMP_V6;
            }
            model.add(self.resource_name(name)?, rule);
        }
        Ok(())
    }
}

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if context.spec.has("api.loadBalancer") {
        let rule = FirewallRule {
            source_ranges: HEALTH_CHECKS.map(str::to_owned).into(),
            allowed: vec![Allowed::all("tcp")],
            ..context.rule(context.api_tags())
        };
        model.add(context.resource_name("lb-health-checks")?, rule);
    }
    let (node, masters) = (vec![context.tag("node")], context.master_tags());
    for (name, from, to, allowed) in [
        ("node-to-node", &node, &node, context.all_protocols()),
        ("master-to-master", &masters, &masters, context.all_protocols()),
        ("master-to-node", &masters, &node, context.all_protocols()),
        ("node-to-master", &node, &masters, to_masters(context)),
    ] {
        let rule = FirewallRule { source_tags: from.clone(), allowed, ..context.rule(to.clone()) };
        model.add(context.resource_name(name)?, rule);
    }
    // The packets of Pods with such addresses do not carry the tags of their machine.
    if context.has_alias_ranges() || context.spec.has("networking.kubenet") {
        let rule = FirewallRule {
            source_ranges: vec![context.spec.text("networking.podCIDR").to_owned()],
            allowed: context.all_protocols(),
            ..context.rule(node)
        };
        context.add_rules(model, "pod-cidrs-to-node", &rule)?;
    }
    Ok(())
}

/// Returns the traffic from workers to control planes.
fn to_masters(context: &Context<'_>) -> Vec<Allowed> {
    let spec = context.spec;
    let tcp = |port: u16| Allowed::port("tcp", port);
    let mut allowed = vec![tcp(API), tcp(KUBELET), tcp(KOPS_CONTROLLER)];
    if context.cluster.dns() == Dns::Gossip {
        for port in GOSSIP {
            allowed.extend([Allowed::port("udp", port), tcp(port)]);
        }
    }
    if spec.has("networking.calico") {
        allowed.extend([Allowed::all("ipip"), tcp(BGP)]);
    }
    if spec.has("networking.cilium") {
        allowed.push(Allowed::port("udp", VXLAN));
        allowed.extend(has_cilium_etcd(spec).then(|| tcp(CILIUM_ETCD)));
    }
    if context.has_alias_ranges() {
        allowed.extend(METRICS.map(tcp));
    }
    allowed
}
