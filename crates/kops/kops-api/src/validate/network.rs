//! Validates address ranges and subnets.

use std::net::IpAddr;

use api_meta::{Cidr, ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{
    paths::spec,
    provider::{NetworkRange, Provider},
    values::{overlap, validate_range},
};
use crate::object::Object;

/// The other ranges of a cluster.
#[derive(Default)]
struct Ranges {
    networks: Vec<Cidr>,
    pods: Option<Cidr>,
    services: Option<Cidr>,
}

pub(super) fn validate(cluster: &Object, complete: bool, errors: &mut ErrorList) {
    let networking = cluster.spec.at("networking");
    let provider = Provider::of(cluster);
    validate_network_range(networking, &provider, complete, errors);
    let ranges = ranges(networking, &provider, complete, errors);
    validate_subnets(&provider, networking, &ranges, complete, errors);
    if networking.has("classic") {
        errors.push(FieldError::invalid(
            &spec("networking"),
            "classic",
            "classic networking is not supported",
        ));
    }
}

/// Validates that the cloud allows the ranges of the network. Completion writes those that are required.
fn validate_network_range(
    networking: &Value,
    provider: &Provider,
    complete: bool,
    errors: &mut ErrorList,
) {
    let at = spec("networking");
    let cidr = networking.text("networkCIDR");
    match provider.network_range {
        NetworkRange::Required if complete && cidr.is_empty() => {
            let detail = "Cluster does not have networkCIDR set";
            errors.push(FieldError::required(&at.child("networkCIDR"), detail));
        }
        NetworkRange::Prohibited if !cidr.is_empty() => {
            let detail = format!("{} doesn't support networkCIDR", provider.name);
            errors.push(FieldError::forbidden(&at.child("networkCIDR"), detail));
        }
        _ => {}
    }
    let additional = !networking.items("additionalNetworkCIDRs").is_empty();
    if additional && !provider.several_networks {
        let detail = format!("{} doesn't support additionalNetworkCIDRs", provider.name);
        errors.push(FieldError::forbidden(&at.child("additionalNetworkCIDRs"), detail));
    }
    let outside = networking.text("nonMasqueradeCIDR");
    if complete && provider.needs_non_masquerade && outside.is_empty() {
        let detail = "Cluster does not have nonMasqueradeCIDR set";
        errors.push(FieldError::required(&at.child("nonMasqueradeCIDR"), detail));
    }
    if ["do", "linode"].contains(&provider.name) && !cidr.is_empty() {
        let public = |range: Cidr| !matches!(range.address, IpAddr::V4(ip) if ip.is_private());
        if cidr.parse::<Cidr>().is_ok_and(public) {
            let detail = "networkCIDR must be within a private IP range";
            errors.push(FieldError::invalid(&at.child("networkCIDR"), cidr, detail));
        }
        if !networking.text("networkID").is_empty() {
            let name = if provider.is("do") { "DO" } else { "Akamai (Linode)" };
            let detail =
                format!("{name} doesn't support specifying both NetworkID and NetworkCIDR");
            errors.push(FieldError::forbidden(&at.child("networkCIDR"), detail));
        }
    }
}

fn ranges(
    networking: &Value,
    provider: &Provider,
    complete: bool,
    errors: &mut ErrorList,
) -> Ranges {
    let at = spec("networking");
    let mut ranges = Ranges::default();
    let network = networking.text("networkCIDR");
    // A range that the cloud prohibits is not part of the cluster's network.
    if !network.is_empty() && provider.network_range != NetworkRange::Prohibited {
        ranges.networks.extend(validate_range(&at.child("networkCIDR"), network, errors));
    }
    let additional = networking.texts("additionalNetworkCIDRs").enumerate();
    for (number, text) in additional.filter(|_| provider.several_networks) {
        let at = at.child("additionalNetworkCIDRs").index(number);
        ranges.networks.extend(validate_range(&at, text, errors));
    }
    let outside = networking.text("nonMasqueradeCIDR");
    let masqueraded = match outside {
        "" => None,
        text => validate_range(&at.child("nonMasqueradeCIDR"), text, errors),
    };
    let v6 = outside.contains(':');
    if v6 && outside != "::/0" {
        let detail = "IPv6 clusters must have a nonMasqueradeCIDR of \"::/0\"";
        errors.push(FieldError::forbidden(&at.child("nonMasqueradeCIDR"), detail));
    }
    // If Pods have addresses of the machines' network, the two ranges are the same.
    let shared = networking.has("amazonVPC") || networking.text("cilium.ipam") == "eni";
    let met = masqueraded.filter(|_| !shared);
    for network in
        ranges.networks.iter().filter(|n| met.is_some_and(|outside| overlap(outside, **n)))
    {
        let detail =
            format!("nonMasqueradeCIDR {outside:?} cannot overlap with networkCIDR \"{network}\"");
        errors.push(FieldError::forbidden(&at.child("nonMasqueradeCIDR"), detail));
    }
    let mut one = |field: &str, needed: bool| match networking.text(field) {
        "" => {
            if needed {
                errors.push(FieldError::required(
                    &at.child(field),
                    format!("Cluster did not have {field} set"),
                ));
            }
            None
        }
        text => validate_range(&at.child(field), text, errors),
    };
    ranges.pods = one("podCIDR", complete && !v6);
    ranges.services = one("serviceClusterIPRange", complete);
    if let (Some(pods), Some(outside)) = (ranges.pods, masqueraded)
        && !outside.covers(pods)
    {
        let detail =
            format!("podCIDR \"{pods}\" must be a subnet of nonMasqueradeCIDR \"{outside}\"");
        errors.push(FieldError::forbidden(&at.child("podCIDR"), detail));
    }
    ranges
}

fn validate_subnets(
    provider: &Provider,
    networking: &Value,
    ranges: &Ranges,
    complete: bool,
    errors: &mut ErrorList,
) {
    let at = spec("networking.subnets");
    let subnets = networking.items("subnets");
    let aws = provider.is("aws");
    let needs_range = provider.needs_subnet_range && complete;
    let regional = provider.needs_subnet_region;
    let region = subnets.iter().map(|subnet| subnet.text("region")).find(|r| !r.is_empty());
    if subnets.is_empty() && provider.needs_subnets {
        errors.push(FieldError::required(&at, "must configure at least one subnet (use --zones)"));
    }
    for (number, subnet) in subnets.iter().enumerate() {
        let at = at.index(number);
        validate_subnet(subnet, networking, ranges, needs_range, &at, errors);
        if subnets[..number].iter().any(|s| s.text("name") == subnet.text("name")) {
            errors.push(FieldError::duplicate(&at.child("name"), subnet.text("name")));
        }
        if subnet.text("id").is_empty() != subnets[0].text("id").is_empty() {
            let detail = "cannot mix subnets with specified ID and unspecified ID";
            errors.push(FieldError::forbidden(&at.child("id"), detail));
        }
        if !aws && !subnet.text("ipv6CIDR").is_empty() {
            let detail = "ipv6CIDR can only be specified for AWS";
            errors.push(FieldError::forbidden(&at.child("ipv6CIDR"), detail));
        }
        if regional && subnet.text("region").is_empty() {
            errors.push(FieldError::required(&at.child("region"), "region must be specified"));
        } else if regional && region != Some(subnet.text("region")) {
            errors.push(FieldError::forbidden(&at.child("region"), "clusters cannot span regions"));
        }
        if aws && subnet.has("additionalRoutes") {
            validate_routes(subnet, &ranges.networks, &at.child("additionalRoutes"), errors);
        }
    }
}

fn validate_subnet(
    subnet: &Value,
    networking: &Value,
    ranges: &Ranges,
    needs_range: bool,
    at: &Path,
    errors: &mut ErrorList,
) {
    let name = subnet.text("name");
    if name.is_empty() {
        errors.push(FieldError::required(&at.child("name"), ""));
    }
    let v6_only = networking.text("nonMasqueradeCIDR").contains(':');
    match subnet.text("cidr") {
        "" if needs_range && !(v6_only && subnet.has("ipv6CIDR")) => {
            errors.push(FieldError::required(&at.child("cidr"), "subnet does not have a cidr set"));
        }
        "" => {}
        text => validate_ipv4(name, text, networking, ranges, &at.child("cidr"), errors),
    }
    validate_ipv6(subnet.text("ipv6CIDR"), ranges, &at.child("ipv6CIDR"), errors);
    validate_egress(subnet, &at.child("egress"), errors);
    if subnet.text("type") == "DualStack" && !v6_only {
        let detail = "subnet type DualStack may only be used in IPv6 clusters";
        errors.push(FieldError::forbidden(&at.child("type"), detail));
    }
}

fn validate_ipv4(
    name: &str,
    text: &str,
    networking: &Value,
    ranges: &Ranges,
    at: &Path,
    errors: &mut ErrorList,
) {
    let Some(own) = validate_range(at, text, errors) else { return };
    let mut forbid = |detail: String| {
        errors.push(FieldError::forbidden(at, format!("subnet {name:?} cidr {text:?} {detail}")))
    };
    if !ranges.networks.is_empty() && !ranges.networks.iter().any(|network| network.covers(own)) {
        let more = if ranges.networks.len() > 1 { " or an additionalNetworkCIDR" } else { "" };
        forbid(format!(
            "is not a subnet of the networkCIDR {:?}{more}",
            networking.text("networkCIDR")
        ));
    }
    if let Some(pods) =
        ranges.pods.filter(|pods| overlap(*pods, own) && !networking.has("amazonVPC"))
    {
        forbid(format!("must not overlap podCIDR \"{pods}\""));
    }
    if let Some(services) = ranges.services.filter(|services| overlap(*services, own)) {
        forbid(format!("must not overlap serviceClusterIPRange \"{services}\""));
    }
}

/// Validates a range, or `/64#1f`: the number of a part of that size of the network's own range.
fn validate_ipv6(text: &str, ranges: &Ranges, at: &Path, errors: &mut ErrorList) {
    if text.is_empty() {
        return;
    }
    if let Some(rest) = text.strip_prefix('/') {
        let part = rest.split_once('#');
        let size = part.and_then(|(size, _)| size.parse::<u8>().ok()).filter(|size| *size <= 128);
        let number = part.and_then(|(_, number)| u64::from_str_radix(number, 16).ok());
        if size.is_none() || number.is_none() {
            errors.push(FieldError::invalid(at, text, "IPv6 CIDR subnet is not parsable"));
        }
        return;
    }
    match validate_range(at, text, errors) {
        Some(own) if own.address.is_ipv4() => {
            errors.push(FieldError::invalid(at, text, "Network is not an IPv6 CIDR"));
        }
        Some(own) if ranges.services.is_some_and(|services| overlap(services, own)) => {
            errors.push(FieldError::forbidden(
                at,
                format!("ipv6CIDR {text:?} must not overlap serviceClusterIPRange"),
            ));
        }
        _ => {}
    }
}

fn validate_egress(subnet: &Value, at: &Path, errors: &mut ErrorList) {
    let text = subnet.text("egress");
    if text.is_empty() {
        return;
    }
    let kind = text.split('-').next().unwrap_or_default();
    if !["nat", "eipalloc", "i", "External", "tgw"].contains(&kind) {
        let detail = "egress must be of type NAT Gateway, NAT Gateway with existing ElasticIP, NAT EC2 Instance, \
                      Transit Gateway, or External";
        errors.push(FieldError::invalid(at, text, detail));
    }
    let outward = match subnet.text("type") {
        "DualStack" | "Private" => true,
        "Public" => subnet.has("ipv6CIDR"),
        _ => false,
    };
    if text != "External" && !outward {
        let detail = "egress can only be specified for private or IPv6-capable public subnets";
        errors.push(FieldError::forbidden(at, detail));
    }
}

fn validate_routes(subnet: &Value, networks: &[Cidr], at: &Path, errors: &mut ErrorList) {
    if !subnet.text("id").is_empty() {
        errors.push(FieldError::forbidden(
            at,
            "additional routes cannot be added if the subnet is shared",
        ));
    } else if subnet.text("type") != "Private" {
        errors.push(FieldError::forbidden(
            at,
            "additional routes can only be added on private subnets",
        ));
    }
    let routes = subnet.items("additionalRoutes");
    for (number, route) in routes.iter().enumerate() {
        let at = at.index(number);
        let (cidr, target) = (route.text("cidr"), route.text("target"));
        if !["pcx-", "i-", "nat-", "tgw-", "igw-", "eigw-"]
            .iter()
            .any(|kind| target.starts_with(kind))
        {
            errors.push(FieldError::invalid(
                &at.child("target"),
                target,
                "unknown target type for route",
            ));
        }
        if let Some(own) = validate_range(&at.child("cidr"), cidr, errors)
            && target.starts_with("pcx-")
            && networks.iter().any(|network| network.contains(own.address))
        {
            let detail = "target is more specific than a network CIDR block. This route can target only an interface \
                          or an instance.";
            errors.push(FieldError::forbidden(&at.child("target"), detail));
        }
        let again = routes[..number].iter().any(|other| other.text("cidr") == cidr);
        if again || networks.iter().any(|network| network.to_string() == cidr) {
            errors.push(FieldError::duplicate(&at.child("cidr"), cidr));
        }
    }
}
