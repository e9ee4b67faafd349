//! The load balancer of the API.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    context::{Context, owned, text_at},
    firewall::{allow, allow_as, allow_egress, group},
    graph::Model,
    names,
};
use crate::{
    aws::{
        AccessLog, Balancer, ClassicBalancer, HealthCheck, Kind, Listener, Mapping,
        NetworkBalancer, Peer, Ref, SecurityGroup, SecurityGroupRule, Tags, TargetGroup,
        TlsTermination,
    },
    error::Error,
};

const API: i64 = 443;
/// The port for clients with certificates, if the load balancer terminates TLS at the API's own port.
const API_TCP: i64 = 8443;
const KOPS_CONTROLLER: i64 = 3988;
const ETCD_CILIUM: i64 = 4003;
/// The idle timeout in seconds, as upstream's.
const IDLE_TIMEOUT: i64 = 300;
/// AWS' default policy.
const TLS_POLICY: &str = "ELBSecurityPolicy-2016-08";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let Some(network) = context.network_balancer() else { return Ok(()) };
    let balancer = balancer(context, model)?;
    let mut tags = context.tags("", false);
    let full = format!("api.{}", context.name);
    tags.insert("Name".to_owned(), full.clone());
    if network {
        let to = model.add(full, tags, NetworkBalancer(balancer));
        add_listeners(context, model, &to);
    } else {
        model.add(full, tags, ClassicBalancer(balancer));
    }
    add_rules(context, model);
    Ok(())
}

fn balancer(context: &Context<'_>, model: &mut Model) -> Result<Balancer, Error> {
    let spec = context.spec.at("api.loadBalancer");
    let own = security_group(context, model);
    let mut security_groups = vec![own];
    for id in owned(spec.texts("additionalSecurityGroups")) {
        security_groups.push(context.existing_group(model, id.clone(), &id));
    }
    let subnets = match spec.items("subnets") {
        [] => choose_subnets(context, spec.text("type") == "Internal"),
        subnets => subnet_mappings(context, subnets)?,
    };
    let log = spec.opt_at("accessLog").map(|log| {
        let prefix = text_at(log, "bucketPrefix");
        let interval = log.int("interval");
        AccessLog { bucket: log.text("bucket").to_owned(), prefix, interval }
    });
    Ok(Balancer {
        short: names::short(context.name, "api"),
        internal: spec.text("type") == "Internal",
        dual_stack: is_dual(context, &subnets),
        subnets,
        security_groups,
        cross_zone: context.balances_kops_controller() || spec.flag("crossZoneLoadBalancing"),
        log,
        certificate: context.certificate().map(str::to_owned),
        idle_timeout: spec.opt_int("idleTimeoutSeconds").unwrap_or(IDLE_TIMEOUT),
    })
}

fn subnet_mappings(context: &Context<'_>, subnets: &[Value]) -> Result<Vec<Mapping>, Error> {
    let mapping = |one: &Value| {
        let name = one.text("name");
        if !context.subnets().iter().any(|subnet| subnet.text("name") == name) {
            let reason = "is not a subnet of the cluster";
            return Err(Error::value("spec.api.loadBalancer.subnets[].name", name, reason));
        }
        let subnet = context.subnet(name);
        let (allocation, address) =
            (text_at(one, "allocationID"), text_at(one, "privateIPv4Address"));
        Ok(Mapping { subnet, allocation, address })
    };
    let mut mappings = subnets.iter().map(mapping).collect::<Result<Vec<_>, _>>()?;
    mappings.sort_by(|a, b| a.subnet.cmp(&b.subnet));
    Ok(mappings)
}

/// Chooses one subnet per zone: a utility subnet before a dual-stack one before one with control planes.
pub(super) fn choose_subnets(context: &Context<'_>, internal: bool) -> Vec<Mapping> {
    let of_masters: Vec<&str> =
        context.of_role("ControlPlane").flat_map(|group| group.spec.texts("subnets")).collect();
    let mut best: BTreeMap<&str, (i32, &str)> = BTreeMap::new();
    for subnet in suitable_subnets(context, internal) {
        let name = subnet.text("name");
        let kind = match subnet.text("type") {
            "Utility" => 3,
            "DualStack" => 2,
            _ => 0,
        };
        let score = kind + i32::from(of_masters.contains(&name));
        let of_zone = best.entry(subnet.text("zone")).or_insert((score, name));
        if score > of_zone.0 || (score == of_zone.0 && name < of_zone.1) {
            *of_zone = (score, name);
        }
    }
    let mapping =
        |(_, name)| Mapping { subnet: context.subnet(name), allocation: None, address: None };
    let mut mappings: Vec<_> = best.into_values().map(mapping).collect();
    mappings.sort_by(|a, b| a.subnet.cmp(&b.subnet));
    mappings
}

/// Returns the subnets suitable for a load balancer.
pub(super) fn suitable_subnets<'a>(
    context: &Context<'a>,
    internal: bool,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    let kinds = if internal { ["Private", "DualStack"] } else { ["Public", "Utility"] };
    context.subnets().iter().filter(move |one| kinds.contains(&one.text("type")))
}

/// Reports whether all subnets have IPv6, too.
pub(super) fn is_dual(context: &Context<'_>, subnets: &[Mapping]) -> bool {
    let single = |subnet: &Value| {
        let name = context.subnet(subnet.text("name"));
        subnet.text("ipv6CIDR").is_empty() && subnets.iter().any(|one| one.subnet == name)
    };
    !context.subnets().iter().any(single)
}

/// A listener of a network load balancer and its target group.
pub(super) struct ForwardedPort<'a> {
    /// The prefix of the target group's name.
    pub(super) prefix: &'a str,
    /// The listener's port and the targets' port.
    pub(super) ports: (i64, i64),
    /// The protocol of the target group.
    pub(super) protocol: &'static str,
    /// The health check.
    pub(super) health: HealthCheck,
    /// The TLS termination; `None` for TCP.
    pub(super) tls: Option<TlsTermination>,
}

const TCP: HealthCheck = HealthCheck { protocol: "TCP", path: None };

impl<'a> ForwardedPort<'a> {
    pub(super) fn tcp(prefix: &'a str, from: i64, to: i64) -> Self {
        Self { prefix, ports: (from, to), protocol: "TCP", health: TCP, tls: None }
    }

    pub(super) fn add(self, context: &Context<'_>, model: &mut Model, balancer: &Ref) {
        let name = names::short(context.name, self.prefix);
        let (port, to) = self.ports;
        let body = TargetGroup {
            vpc: context.vpc(),
            port: to,
            protocol: self.protocol,
            health: self.health,
        };
        let tags = context.tags(&name, false);
        let group = model.add(name.clone(), tags, body);
        let listener = Listener { balancer: balancer.clone(), port, group, tls: self.tls };
        let name = format!("{}-{port}", balancer.name);
        model.add(name, Tags::new(), listener);
    }
}

fn add_listeners(context: &Context<'_>, model: &mut Model, balancer: &Ref) {
    let mut all = Vec::new();
    match context.certificate() {
        None => all.push(ForwardedPort::tcp("tcp", API, API)),
        Some(certificate) => {
            all.push(ForwardedPort::tcp("tcp", API_TCP, API));
            let policy = text_at(context.spec, "api.loadBalancer.sslPolicy");
            let policy = policy.unwrap_or_else(|| TLS_POLICY.to_owned());
            let tls = TlsTermination { certificate: certificate.to_owned(), policy };
            all.push(ForwardedPort {
                protocol: "TLS",
                tls: Some(tls),
                ..ForwardedPort::tcp("tls", API, API)
            });
        }
    }
    if context.balances_kops_controller() {
        let health = HealthCheck { protocol: "HTTPS", path: Some("/healthz") };
        let passed = ForwardedPort::tcp("kops-controller", KOPS_CONTROLLER, KOPS_CONTROLLER);
        all.push(ForwardedPort { health, ..passed });
        if context.cilium_etcd() {
            all.push(ForwardedPort::tcp("etcd-cilium", ETCD_CILIUM, ETCD_CILIUM));
        }
    }
    for passed in all {
        passed.add(context, model, balancer);
    }
}

/// Returns the target groups of a group's machines.
pub(super) fn target_groups(context: &Context<'_>, role: &str) -> Vec<Ref> {
    let master = role == "ControlPlane";
    let serves = master || role == "APIServer";
    let mut prefixes = Vec::new();
    if serves && context.network_balancer() == Some(true) {
        prefixes.push("tcp");
        if master && context.balances_kops_controller() {
            prefixes.push("kops-controller");
            if context.cilium_etcd() {
                prefixes.push("etcd-cilium");
            }
        }
        if context.certificate().is_some() {
            prefixes.push("tls");
        }
    }
    if role == "Bastion" {
        prefixes.push("bastion");
    }
    let groups = prefixes.into_iter().map(|prefix| names::short(context.name, prefix));
    groups.map(|name| Ref::new(Kind::TargetGroup, name)).collect()
}

fn security_group(context: &Context<'_>, model: &mut Model) -> Ref {
    let name = format!("api-elb.{}", context.name);
    match text_at(context.spec, "api.loadBalancer.securityGroupOverride") {
        Some(id) => context.existing_group(model, name, &id),
        None => {
            let description = "Security group for api ELB".to_owned();
            let body = SecurityGroup { vpc: context.vpc(), description };
            model.add(name.clone(), context.tags(&name, false), body)
        }
    }
}

/// Allows the ICMP messages that report packets as too large.
pub(super) fn allow_icmp(model: &mut Model, what: &str, to: &Ref, from: &str) {
    let peer = Peer::parse(from);
    if !matches!(peer, Peer::V4(_)) {
        let rule = SecurityGroupRule::of(to, peer.clone()).ports("icmpv6", -1, -1);
        allow_as(model, format!("icmpv6-pmtu-{what}-{from}"), rule);
    }
    if !matches!(peer, Peer::V6(_)) {
        let rule = SecurityGroupRule::of(to, peer).ports("icmp", 3, 4);
        allow_as(model, format!("icmp-pmtu-{what}-{from}"), rule);
    }
}

fn add_rules(context: &Context<'_>, model: &mut Model) {
    let own = group(format!("api-elb.{}", context.name));
    allow_egress(model, &own);
    let second = context.certificate().is_some() && context.network_balancer() == Some(true);
    for from in context.spec.texts("api.access") {
        let rule = || SecurityGroupRule::of(&own, Peer::parse(from));
        allow(model, rule().ports("tcp", API, API));
        if second {
            allow(model, rule().ports("tcp", API_TCP, API_TCP));
        }
        allow_icmp(model, "api-elb", &own, from);
    }
    let passes = context.balances_kops_controller();
    if passes {
        for node in context.role_groups("Node") {
            let suffix = node.existing_id.map_or_else(String::new, |id| format!("-{id}"));
            let rule = SecurityGroupRule::of(&own, Peer::Group(node.group));
            allow_as(model, format!("node{suffix}-to-elb"), rule);
        }
    }
    for master in context.role_groups("ControlPlane") {
        let suffix = master.existing_id.map_or_else(String::new, |id| format!("-{id}"));
        let mut pass = |name: &str, protocol: &str, from: i64, to: i64| {
            let rule = SecurityGroupRule::of(&master.group, Peer::Group(own.clone()))
                .ports(protocol, from, to);
            allow_as(model, format!("{name}{suffix}"), rule);
        };
        if second {
            pass("tcp-api-cp", "tcp", API_TCP, API_TCP);
        }
        pass("https-elb-to-master", "tcp", API, API);
        pass("icmp-pmtu-elb-to-cp", "icmp", 3, 4);
        if passes {
            pass("kops-controller-elb-to-cp", "tcp", KOPS_CONTROLLER, KOPS_CONTROLLER);
            if context.cilium_etcd() {
                pass("etcd-cilium-elb-to-cp", "tcp", ETCD_CILIUM, ETCD_CILIUM);
            }
        }
        let back =
            SecurityGroupRule::of(&own, Peer::Group(master.group.clone())).ports("icmp", 3, 4);
        allow_as(model, format!("icmp-pmtu-cp{suffix}-to-elb"), back);
    }
}
