//! The VPC, its subnets and their egress.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::{Cidr, Tree as _};
use serde_json::Value;

use super::{
    context::{Context, owned},
    graph::Model,
};
use crate::{
    aws::{
        Body, DhcpOptions, DhcpOptionsAssociation, EgressOnlyGateway, ElasticIp, InternetGateway,
        Kind, NatGateway, Ref, Resource, Route, RouteTable, RouteTableAssociation, RouteTarget,
        Subnet, Tags, Vpc, VpcCidr,
    },
    cluster::Cluster as _,
    error::Error,
    world::Network,
};

const ANY_V4: &str = "0.0.0.0/0";
const ANY_V6: &str = "::/0";
/// The prefix by which machines with only IPv6 reach IPv4.
const NAT64: &str = "64:ff9b::/96";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    add_vpc(context, model);
    let internet = add_internet(context, model)?;
    let egress_only = add_egress_only(context, model)?;
    add_subnets(context, model)?;
    for (zone, subnets) in &by_zone(context) {
        let zone = Zone { context, name: zone, subnets };
        zone.add(model, internet.as_ref(), egress_only.as_ref())?;
    }
    Ok(())
}

fn add_vpc(context: &Context<'_>, model: &mut Model) {
    let networking = context.spec.at("networking");
    let cidr = networking.text("networkCIDR").to_owned();
    let name = context.name;
    if context.shares_vpc() {
        model.add_existing(name, networking.text("networkID"), Vpc { cidr });
        return;
    }
    let vpc = model.add(name, context.tags(name, false), Vpc { cidr });
    for cidr in owned(networking.texts("additionalNetworkCIDRs")) {
        model.add(cidr.clone(), Tags::new(), VpcCidr { vpc: vpc.clone(), cidr });
    }
    let domain = match context.region.as_str() {
        "us-east-1" => "ec2.internal".to_owned(),
        region => format!("{region}.compute.internal"),
    };
    let servers = vec!["AmazonProvidedDNS".to_owned()];
    let body = DhcpOptions { domain, servers };
    let options = model.add(name, context.tags(name, false), body);
    model.add(name, Tags::new(), DhcpOptionsAssociation { vpc, options });
}

/// Reports whether a subnet's routes are managed by others.
fn is_unmanaged(subnet: &Value) -> bool {
    subnet.text("egress") == "External"
}

fn is_private(subnet: &Value) -> bool {
    ["Private", "DualStack"].contains(&subnet.text("type"))
}

/// Adds a gateway: a new one, or that of the shared VPC.
fn gateway(
    context: &Context<'_>,
    model: &mut Model,
    body: impl Into<Body>,
    known: fn(&Network) -> String,
    what: &'static str,
) -> Result<Ref, Error> {
    let name = context.name;
    if !context.shares_vpc() {
        return Ok(model.add(name, context.tags(name, false), body));
    }
    let vpc = context.spec.text("networking.networkID");
    let network = context.inputs.world.networks.get(vpc);
    // An unknown gateway is an error only if a resource refers to it.
    let id = network.map_or_else(String::new, known);
    let shared = Some(id.clone());
    let gateway = Resource {
        name: name.to_owned(),
        shared,
        tags: context.tags(name, true),
        body: body.into(),
    };
    let refers = !context.subnets().iter().all(|subnet| !subnet.text("id").is_empty());
    if id.is_empty() && refers {
        return Err(Error::Unknown {
            what,
            name: vpc.to_owned(),
            remedy: "set its ID in the table of existing resources",
        });
    }
    Ok(model.put(gateway))
}

/// Adds the internet gateway, and the route table of the subnets that use it.
fn add_internet(context: &Context<'_>, model: &mut Model) -> Result<Option<Ref>, Error> {
    if context.subnets().iter().all(is_unmanaged) {
        return Ok(None);
    }
    let body = InternetGateway { vpc: context.vpc() };
    let known = |network: &Network| network.internet_gateway.clone();
    let internet = gateway(context, model, body, known, "the internet gateway of VPC")?;
    if context.subnets().iter().all(|subnet| !subnet.text("id").is_empty()) {
        return Ok(Some(internet));
    }
    let table = add_table(context, model, context.name, "public".to_owned(), false);
    for to in [ANY_V4, ANY_V6] {
        add_route(model, to, &table, to, RouteTarget::Internet(internet.clone()));
    }
    Ok(Some(internet))
}

fn add_egress_only(context: &Context<'_>, model: &mut Model) -> Result<Option<Ref>, Error> {
    let private = context.subnets().iter().any(|one| !is_unmanaged(one) && is_private(one));
    if !private || !context.cluster.is_ipv6_only() {
        return Ok(None);
    }
    let body = EgressOnlyGateway { vpc: context.vpc() };
    let known = |network: &Network| network.egress_only_gateway.clone();
    gateway(context, model, body, known, "the egress-only gateway of VPC").map(Some)
}

fn add_table(
    context: &Context<'_>,
    model: &mut Model,
    name: &str,
    role: String,
    shared: bool,
) -> Ref {
    let mut tags = context.tags(name, shared);
    tags.insert("kubernetes.io/kops/role".to_owned(), role.clone());
    model.add(name, tags, RouteTable { vpc: context.vpc(), role })
}

fn add_route(model: &mut Model, name: impl Into<String>, table: &Ref, to: &str, via: RouteTarget) {
    let body = Route { table: table.clone(), to: to.to_owned(), via };
    model.add(name, Tags::new(), body);
}

fn add_subnets(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    for subnet in context.subnets() {
        let short = subnet.text("name");
        let id = subnet.text("id");
        let name = format!("{short}.{}", context.name);
        if !subnet.text("publicIP").is_empty() {
            return Err(Error::Unsupported {
                what: format!("spec.subnets[{short}].publicIP"),
                remedy: "set the address as egress: eipalloc-...",
            });
        }
        let body = Subnet {
            short: short.to_owned(),
            vpc: context.vpc(),
            zone: subnet.text("zone").to_owned(),
            cidr: subnet.text("cidr").to_owned(),
            ipv6: subnet.text("ipv6CIDR").to_owned(),
            named_by_id: context.spec.has("cloudControllerManager"),
        };
        let shared = Some(id.to_owned()).filter(|id| !id.is_empty());
        let tags = subnet_tags(context, subnet, &name);
        let made = shared.is_none() && !is_unmanaged(subnet);
        let to = model.put(Resource { name: name.clone(), shared, tags, body: body.into() });
        if made {
            let (name, table) = match () {
                () if is_private(subnet) => {
                    (format!("private-{name}"), table_name(context, subnet, "private"))
                }
                () if is_nat64(context, subnet) => {
                    (format!("public-{name}"), table_name(context, subnet, "public"))
                }
                () => (name, context.name.to_owned()),
            };
            let table = Ref::new(Kind::RouteTable, table);
            model.add(name, Tags::new(), RouteTableAssociation { table, subnet: to });
        }
    }
    Ok(())
}

/// Reports whether it is a public subnet whose machines reach IPv4 by NAT64.
fn is_nat64(context: &Context<'_>, subnet: &Value) -> bool {
    context.cluster.is_ipv6_only()
        && subnet.text("type") == "Public"
        && !subnet.text("ipv6CIDR").is_empty()
}

fn table_name(context: &Context<'_>, subnet: &Value, kind: &str) -> String {
    format!("{kind}-{}.{}", subnet.text("zone"), context.name)
}

/// Returns the tags by which load balancers find their subnets.
fn subnet_tags(context: &Context<'_>, subnet: &Value, name: &str) -> Tags {
    if context.spec.opt_flag("networking.tagSubnets") == Some(false) {
        return Tags::new();
    }
    let mut tags = context.tags(name, !subnet.text("id").is_empty());
    let kind = subnet.text("type");
    tags.insert("SubnetType".to_owned(), kind.to_owned());
    let all = context.subnets().iter();
    let dual = |one: &&Value| one.text("type") == "DualStack";
    let zone = subnet.text("zone");
    let internal = match kind {
        "DualStack" => true,
        "Private" => !all.clone().any(|one| dual(&one) && one.text("zone") == zone),
        _ => !all.clone().any(is_private) && !context.cluster.is_ipv6_only(),
    };
    let public = !is_private(subnet);
    for (holds, tag) in
        [(public, "kubernetes.io/role/elb"), (internal, "kubernetes.io/role/internal-elb")]
    {
        if holds {
            tags.insert(tag.to_owned(), "1".to_owned());
        }
    }
    for group in context.groups.iter().filter(|one| one.spec.text("manager") == "Karpenter") {
        if group.spec.texts("subnets").any(|text| text == subnet.text("name")) {
            tags.insert(format!("kops.k8s.io/instance-group/{}", group.name()), "true".to_owned());
        }
    }
    tags
}

/// Returns the subnets of each zone that need egress of their own.
fn by_zone<'a>(context: &Context<'a>) -> BTreeMap<&'a str, Vec<&'a Value>> {
    let mut zones: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for subnet in context.subnets() {
        let managed = subnet.text("id").is_empty() && !is_unmanaged(subnet);
        if managed && (is_private(subnet) || is_nat64(context, subnet)) {
            zones.entry(subnet.text("zone")).or_default().push(subnet);
        }
    }
    zones
}

struct Zone<'a> {
    context: &'a Context<'a>,
    name: &'a str,
    subnets: &'a [&'a Value],
}

impl Zone<'_> {
    fn add(
        &self,
        model: &mut Model,
        internet: Option<&Ref>,
        egress_only: Option<&Ref>,
    ) -> Result<(), Error> {
        let context = self.context;
        let egress: BTreeSet<&str> = self.subnets.iter().map(|one| one.text("egress")).collect();
        if egress.len() > 1 {
            let all = egress.into_iter().collect::<Vec<_>>().join(", ");
            let reason = "differ within a zone, which has one egress";
            return Err(Error::value("spec.subnets[].egress", all, reason));
        }
        let private = self.subnets.iter().any(|one| is_private(one));
        let nat = self.nat(model, egress.first().copied().unwrap_or_default(), private)?;
        let shared = self.all_shared();
        if private {
            let name = format!("private-{}.{}", self.name, context.name);
            let role = format!("private-{}", self.name);
            let table = add_table(context, model, &name, role.clone(), shared);
            add_route(model, format!("{role}-{ANY_V4}"), &table, ANY_V4, nat.clone());
            if let Some(egress_only) = egress_only {
                add_route(model, format!("{role}-{NAT64}"), &table, NAT64, nat.clone());
                let via = RouteTarget::EgressOnly(egress_only.clone());
                add_route(model, format!("{role}-{ANY_V6}"), &table, ANY_V6, via);
            }
            self.add_further(model, &table)?;
        }
        if let (Some(internet), true) =
            (internet, self.subnets.iter().any(|one| is_nat64(context, one)))
        {
            let name = format!("public-{}.{}", self.name, context.name);
            let role = format!("public-{}", self.name);
            let table = add_table(context, model, &name, role.clone(), shared);
            for to in [ANY_V4, ANY_V6] {
                let via = RouteTarget::Internet(internet.clone());
                add_route(model, format!("{role}-{to}"), &table, to, via);
            }
            add_route(model, format!("{role}-{NAT64}"), &table, NAT64, nat);
        }
        Ok(())
    }

    fn all_shared(&self) -> bool {
        let mut all = self.context.subnets().iter().filter(|one| one.text("zone") == self.name);
        all.all(|one| !one.text("id").is_empty())
    }

    /// Returns the target of IPv4 routes: a new NAT gateway, or the one in the spec.
    fn nat(&self, model: &mut Model, egress: &str, private: bool) -> Result<RouteTarget, Error> {
        let context = self.context;
        let name = format!("{}.{}", self.name, context.name);
        let prefix = egress.split_once('-').map_or(egress, |(prefix, _)| prefix);
        let address = match prefix {
            "nat" => return Ok(RouteTarget::ExistingNat(egress.to_owned())),
            "i" => return Ok(RouteTarget::Instance(egress.to_owned())),
            "tgw" => return Ok(RouteTarget::Transit(egress.to_owned())),
            "eipalloc" => model.add_existing(name.clone(), egress, ElasticIp),
            "" => model.add(name.clone(), context.tags(&name, false), ElasticIp),
            _ => {
                let reason = "is neither External nor an ID with nat-, i-, tgw- or eipalloc-";
                return Err(Error::value("spec.subnets[].egress", egress, reason));
            }
        };
        let kind = if private { "Utility" } else { "Public" };
        let stands = |one: &&Value| one.text("zone") == self.name && one.text("type") == kind;
        let mut found = context.subnets().iter().filter(stands);
        let (Some(subnet), None) = (found.next(), found.next()) else {
            return Err(Error::Unknown {
                what: if private {
                    "one utility subnet in zone"
                } else {
                    "one public subnet in zone"
                },
                name: self.name.to_owned(),
                remedy: "its NAT gateway is placed there; add one to spec.subnets",
            });
        };
        let subnet = context.subnet(subnet.text("name"));
        let body = NatGateway { address: Some(address), subnet };
        Ok(RouteTarget::Nat(model.add(name.clone(), context.tags(&name, false), body)))
    }

    /// Adds the additional routes of private subnets.
    fn add_further(&self, model: &mut Model, table: &Ref) -> Result<(), Error> {
        for subnet in self.subnets.iter().filter(|one| one.text("type") == "Private") {
            for route in subnet.items("additionalRoutes") {
                let (to, target) = (route.text("cidr"), route.text("target").to_owned());
                let via = match target.split('-').next() {
                    Some("pcx") => RouteTarget::Peering(target),
                    Some("i") => RouteTarget::Instance(target),
                    Some("nat") => RouteTarget::ExistingNat(target),
                    Some("tgw") => RouteTarget::Transit(target),
                    Some("igw") => RouteTarget::ExistingInternet(target),
                    Some("eigw") => RouteTarget::ExistingEgressOnly(target),
                    _ => {
                        let reason = "is not an ID with pcx-, i-, nat-, tgw-, igw- or eigw-";
                        let field = "spec.subnets[].additionalRoutes[].target";
                        return Err(Error::value(field, target, reason));
                    }
                };
                if to.parse::<Cidr>().is_err() {
                    let field = "spec.subnets[].additionalRoutes[].cidr";
                    return Err(Error::value(field, to, "is not a range"));
                }
                add_route(model, format!("{}.{to}", subnet.text("name")), table, to, via);
            }
        }
        Ok(())
    }
}
