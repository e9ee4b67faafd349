//! Firewall rules for access to the machines from outside.

use api_meta::Tree as _;

use super::{
    context::Context,
    firewall::{API, CILIUM_ETCD, KOPS_CONTROLLER},
    graph::Model,
};
use crate::{
    boot::is_balanced,
    error::Error,
    gce::{Allowed, FirewallRule},
    model::queries::{has_cilium_etcd, node_ports},
};

const SSH: u16 = 22;

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    add_ssh(context, model)?;
    let (first, last) = node_ports(context.spec)?;
    let ports = |protocol| Allowed { protocol, ports: Some(format!("{first}-{last}")) };
    let rule = FirewallRule {
        source_ranges: ranges(context, "nodePortAccess"),
        allowed: vec![ports("tcp"), ports("udp")],
        ..context.rule(vec![context.tag("node")])
    };
    context.add_rules(model, "nodeport-external-to-node", &rule)?;
    if context.spec.has("api.loadBalancer") {
        add_balanced(context, model)?;
    } else {
        let tags = context.master_tags();
        context.add_rules(
            model,
            "kubernetes-master-https",
            &from_api_access(context, API, tags),
        )?;
    }
    if context.has_alias_ranges() {
        let rule = FirewallRule {
            source_ranges: vec![context.spec.text("networking.podCIDR").to_owned()],
            allowed: vec![Allowed::port("tcp", API)],
            ..context.rule(context.api_tags())
        };
        model.add(context.resource_name("pod-cidrs-to-https-api")?, rule);
    }
    Ok(())
}

/// Adds the rules for SSH. With a bastion, SSH is possible only through it.
fn add_ssh(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let (masters, node) = (context.master_tags(), vec![context.tag("node")]);
    let allowed = || vec![Allowed::port("tcp", SSH)];
    let from_outside = |tags| FirewallRule {
        source_ranges: ranges(context, "sshAccess"),
        allowed: allowed(),
        ..context.rule(tags)
    };
    if context.of_role("Bastion").next().is_none() {
        context.add_rules(model, "ssh-external-to-master", &from_outside(masters))?;
        return context.add_rules(model, "ssh-external-to-node", &from_outside(node));
    }
    let bastion = vec![context.tag("bastion")];
    let from_bastion = |tags| FirewallRule {
        source_tags: bastion.clone(),
        allowed: allowed(),
        ..context.rule(tags)
    };
    context.add_rules(model, "ssh-external-to-bastion", &from_outside(bastion.clone()))?;
    context.add_rules(model, "bastion-to-master-ssh", &from_bastion(masters))?;
    context.add_rules(model, "bastion-to-node-ssh", &from_bastion(node))
}

/// Adds the rules for what the load balancer forwards.
fn add_balanced(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    context.add_rules(model, "https-api", &from_api_access(context, API, context.api_tags()))?;
    let control_planes = || vec![context.tag("control-plane")];
    if is_balanced(context.cluster) {
        let rule = from_api_access(context, KOPS_CONTROLLER, control_planes());
        context.add_rules(model, "kops-controller", &rule)?;
    }
    if has_cilium_etcd(context.spec) {
        let rule = from_api_access(context, CILIUM_ETCD, control_planes());
        context.add_rules(model, "cilium-etcd", &rule)?;
    }
    Ok(())
}

/// Returns a rule for one port from the ranges that may use the API.
fn from_api_access(context: &Context<'_>, port: u16, tags: Vec<String>) -> FirewallRule {
    FirewallRule {
        source_ranges: ranges(context, "api.access"),
        allowed: vec![Allowed::port("tcp", port)],
        ..context.rule(tags)
    }
}

fn ranges(context: &Context<'_>, field: &str) -> Vec<String> {
    context.spec.texts(field).map(str::to_owned).collect()
}
