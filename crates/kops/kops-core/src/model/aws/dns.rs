//! The Route 53 zone and the DNS names of load balancers. The machines' own names are dns-controller's.

use api_meta::Tree as _;

use super::{context::Context, graph::Model};
use crate::{
    aws::{Kind, Record, Ref, Tags, Zone, ZoneAssociation},
    cluster::{Cluster as _, Dns},
    error::Error,
};

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if !context.cluster.publishes_dns() {
        return Ok(());
    }
    let spec = context.spec;
    let zone = add_zone(context, model)?;
    let Some(network) = context.network_balancer() else { return Ok(()) };
    let kind = if network { Kind::NetworkBalancer } else { Kind::ClassicBalancer };
    let target = Ref::new(kind, format!("api.{}", context.name));
    let mut names = vec![spec.text("api.publicName").to_owned()];
    if spec.flag("api.loadBalancer.useForInternalAPI") {
        names.push(format!("api.internal.{}", context.name));
    }
    names.dedup();
    for name in names {
        put_records(model, &zone, &name, &target);
    }
    Ok(())
}

/// Returns the zone's ID, from the spec or by the zone's name.
pub(super) fn zone_id(context: &Context<'_>) -> Result<String, Error> {
    let named = context.spec.text("dnsZone");
    let id = named.trim_start_matches('/').trim_start_matches("hostedzone/");
    if !id.contains('.') {
        return Ok(id.to_owned());
    }
    let private = context.cluster.dns() == Dns::Private;
    let found = context.inputs.world.zone_of(id, private);
    found.map(str::to_owned).ok_or_else(|| Error::Unknown {
        what: "one DNS zone",
        name: named.to_owned(),
        remedy: "kOps creates no zones: create it, and set its ID with --dns-zone",
    })
}

fn add_zone(context: &Context<'_>, model: &mut Model) -> Result<Ref, Error> {
    let name = context.spec.text("dnsZone");
    let id = zone_id(context)?;
    let zone = model.add_existing(name, &format!("/hostedzone/{id}"), Zone);
    if context.cluster.dns() == Dns::Private {
        let vpc = context.spec.text("networking.networkID").to_owned();
        let known = context.inputs.world.zones.iter().find(|zone| zone.id == id);
        if vpc.is_empty() || !known.is_some_and(|zone| zone.networks.contains(&vpc)) {
            let body = ZoneAssociation {
                zone: zone.clone(),
                vpc: context.vpc(),
                region: context.region.clone(),
            };
            model.add(name, Tags::new(), body);
        }
    }
    Ok(zone)
}

/// Adds the records of a load balancer to the zone, which exists only if names are published.
pub(super) fn add_records(
    context: &Context<'_>,
    model: &mut Model,
    name: &str,
    target: &Ref,
) -> Result<(), Error> {
    if !context.cluster.publishes_dns() {
        return Err(Error::value(
            "spec.topology.bastion.bastionPublicName",
            name,
            "cannot be published: the cluster has no DNS zone",
        ));
    }
    put_records(model, &Ref::new(Kind::Zone, context.spec.text("dnsZone")), name, target);
    Ok(())
}

fn put_records(model: &mut Model, zone: &Ref, name: &str, target: &Ref) {
    for (class, suffix) in [("A", ""), ("AAAA", "-AAAA")] {
        let (zone, to, class) = (zone.clone(), target.clone(), class.to_owned());
        let body = Record { zone, name: name.to_owned(), class, to };
        model.add(format!("{name}{suffix}"), Tags::new(), body);
    }
}
