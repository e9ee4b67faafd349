//! Bastions: machines for SSH access to others, behind a load balancer of their own.

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    balancer::{ForwardedPort, allow_icmp, choose_subnets, is_dual, suitable_subnets},
    context::{Context, owned},
    dns,
    firewall::{allow, allow_egress},
    graph::Model,
    names,
};
use crate::{
    aws::{Balancer, Kind, NetworkBalancer, Peer, Ref, SecurityGroup, SecurityGroupRule},
    error::Error,
};

const SSH: i64 = 22;

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if context.of_role("Bastion").next().is_none() {
        return Ok(());
    }
    let spec = context.spec.at("networking.topology.bastion");
    let internal = spec.text("loadBalancer.type") == "Internal";
    let bastions = context.add_role_groups("Bastion", model);
    let own = add_group(context, model);
    for from in &bastions {
        allow_egress(model, from);
        for role in ["ControlPlane", "Node"] {
            for to in context.role_groups(role) {
                let rule = SecurityGroupRule::of(&to.group, Peer::Group(from.clone()));
                allow(model, rule.ports("tcp", SSH, SSH));
            }
        }
    }
    allow_egress(model, &own);
    add_rules(context, model, &own, &bastions, internal);
    add_balancer(context, model, own, spec, internal);
    let name = spec.text("publicName");
    if name.is_empty() {
        return Ok(());
    }
    let target = Ref::new(Kind::NetworkBalancer, format!("bastion.{}", context.name));
    dns::add_records(context, model, name, &target)
}

fn add_group(context: &Context<'_>, model: &mut Model) -> Ref {
    let name = format!("bastion-elb.{}", context.name);
    let description = "Security group for bastion ELB".to_owned();
    let body = SecurityGroup { vpc: context.vpc(), description };
    model.add(name.clone(), context.tags(&name, false), body)
}

fn add_rules(
    context: &Context<'_>,
    model: &mut Model,
    own: &Ref,
    bastions: &[Ref],
    internal: bool,
) {
    let near = suitable_subnets(context, internal).map(|subnet| subnet.text("cidr"));
    let mut from: Vec<&str> = near.filter(|cidr| !cidr.is_empty()).collect();
    from.extend(context.spec.texts("sshAccess"));
    for from in from {
        allow(model, SecurityGroupRule::of(own, Peer::parse(from)).ports("tcp", SSH, SSH));
        allow_icmp(model, "ssh-nlb", own, from);
    }
    for bastion in bastions {
        let passed = || SecurityGroupRule::of(bastion, Peer::Group(own.clone()));
        allow(model, passed().ports("tcp", SSH, SSH));
        allow(model, passed().ports("icmp", 3, 4));
        allow(model, SecurityGroupRule::of(own, Peer::Group(bastion.clone())).ports("icmp", 3, 4));
    }
}

fn add_balancer(context: &Context<'_>, model: &mut Model, own: Ref, spec: &Value, internal: bool) {
    let mut security_groups = vec![own];
    for id in owned(spec.texts("loadBalancer.additionalSecurityGroups")) {
        security_groups.push(context.existing_group(model, id.clone(), &id));
    }
    let subnets = choose_subnets(context, internal);
    let balancer = Balancer {
        short: names::short(context.name, "bastion"),
        internal,
        dual_stack: is_dual(context, &subnets),
        subnets,
        security_groups,
        cross_zone: false,
        log: None,
        certificate: None,
        idle_timeout: 0,
    };
    let name = format!("bastion.{}", context.name);
    let mut tags = context.tags("", false);
    tags.insert("Name".to_owned(), name.clone());
    let to = model.add(name, tags, NetworkBalancer(balancer));
    ForwardedPort::tcp("bastion", SSH, SSH).add(context, model, &to);
}
