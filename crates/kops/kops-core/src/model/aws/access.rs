//! Rules for access to the machines from outside.

use api_meta::Tree as _;

use super::{
    context::Context,
    firewall::{allow, allow_as},
    graph::Model,
};
use crate::{
    aws::{Peer, Ref, SecurityGroupRule},
    error::Error,
    model::queries::node_ports,
};

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let spec = context.spec;
    let groups = |role| context.role_groups(role).into_iter().map(|one| one.group);
    let masters: Vec<Ref> = groups("ControlPlane").collect();
    let nodes: Vec<Ref> = groups("Node").collect();
    // With a bastion, SSH is possible only through it.
    if context.of_role("Bastion").next().is_none() {
        for from in spec.texts("sshAccess") {
            for group in masters.iter().chain(&nodes) {
                allow(model, SecurityGroupRule::of(group, Peer::parse(from)).ports("tcp", 22, 22));
            }
        }
    }
    for from in spec.texts("nodePortAccess") {
        let (first, last) = node_ports(context.spec)?;
        for one in context.role_groups("Node") {
            let suffix = one.existing_id.map_or_else(String::new, |id| format!("-{id}"));
            for protocol in ["tcp", "udp"] {
                let name = format!("nodeport-{protocol}-external-to-node-{from}{suffix}");
                let rule = SecurityGroupRule::of(&one.group, Peer::parse(from))
                    .ports(protocol, first, last);
                allow_as(model, name, rule);
            }
        }
    }
    if !spec.has("api.loadBalancer") {
        for from in spec.texts("api.access") {
            for group in &masters {
                allow(
                    model,
                    SecurityGroupRule::of(group, Peer::parse(from)).ports("tcp", 443, 443),
                );
            }
        }
    }
    Ok(())
}
