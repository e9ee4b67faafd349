//! The network, its subnets, and the address translation of private ones.

use api_meta::Tree as _;
use serde_json::Value;

use super::{context::Context, graph::Model};
use crate::{
    error::Error,
    gce::{Network, Ref, Router, RouterNat, Subnetwork, operations::Labels},
};

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let (network, spec) = (context.network(), context.spec);
    let existing = spec.text("networking.networkID");
    match existing.split('/').collect::<Vec<_>>().as_slice() {
        [""] => drop(model.add(network.name.clone(), Network)),
        [_] | [_, _] if existing.trim_matches('/') == existing => {
            model.add_existing(network.clone(), existing);
        }
        _ => {
            let reason = "is neither NETWORK nor PROJECT/NETWORK";
            return Err(Error::value("spec.networkID", existing, reason));
        }
    }
    let mut translated = Vec::new();
    for subnet in spec.items("networking.subnets") {
        let to = add_subnet(context, model, &network, subnet)?;
        if is_translated(subnet)? {
            translated.push(to);
        }
    }
    if translated.is_empty() {
        return Ok(());
    }
    let name = context.resource_name("nat")?;
    let router = model.add(name.clone(), Router { network });
    let region = context.region.to_owned();
    model.add(name, RouterNat { router, region, subnets: translated });
    Ok(())
}

fn add_subnet(
    context: &Context<'_>,
    model: &mut Model,
    network: &Ref,
    subnet: &Value,
) -> Result<Ref, Error> {
    let to = context.subnet(subnet)?;
    let id = subnet.text("id");
    if !id.is_empty() {
        // A network of another project has its subnets there.
        let project = context.spec.text("networking.networkID").split_once('/');
        let text = project.map_or_else(|| id.to_owned(), |(project, _)| format!("{project}/{id}"));
        model.add_existing(to.clone(), &text);
        return Ok(to);
    }
    let cidr = subnet.text("cidr").to_owned();
    if cidr.is_empty() {
        let field = format!("spec.subnets[{}].cidr", subnet.text("name"));
        return Err(Error::Missing { field, hint: ": the range of a subnet that is created" });
    }
    let mut secondary_ranges = Labels::new();
    if context.has_alias_ranges() {
        for (what, field) in [("pods", "podCIDR"), ("services", "serviceClusterIPRange")] {
            let range = context.spec.text(&format!("networking.{field}")).to_owned();
            secondary_ranges.insert(context.resource_name(what)?, range);
        }
    }
    let region = context.region.to_owned();
    let body = Subnetwork { network: network.clone(), region, cidr, secondary_ranges };
    Ok(model.add(to.name, body))
}

/// Reports whether the cluster translates the addresses of a subnet's machines. Existing subnets have their own way
/// out.
fn is_translated(subnet: &Value) -> Result<bool, Error> {
    let is_private = ["Private", "DualStack"].contains(&subnet.text("type"));
    if !is_private || !subnet.text("id").is_empty() {
        return Ok(false);
    }
    match subnet.text("egress") {
        "" | "NatGateway" => Ok(true),
        "External" => Ok(false),
        egress => {
            let field = format!("spec.subnets[{}].egress", subnet.text("name"));
            Err(Error::value(&field, egress, "is neither NatGateway nor External"))
        }
    }
}
