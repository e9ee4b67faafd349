//! EC2 resources of a cluster other than machines: network, firewall, volumes and keys.

use kops_api::Spec as _;
use serde_json::Value;

use super::{
    ExistingResource, Fields, Identity, Ids,
    fields::{fields, id, is_owned, put_tags, sorted, tags},
    look::Answers,
};
use crate::model::aws::{Body, Kind, Peer, Ref, Resource, RouteTarget, Rule};

/// The EC2 resources with a tag `Name`: their list in an answer, and the name of their IDs.
const NAMED: [(Kind, &str, &str, &str); 9] = [
    (Kind::Vpc, "DescribeVpcs", "vpcSet", "vpcId"),
    (Kind::DhcpOptions, "DescribeDhcpOptions", "dhcpOptionsSet", "dhcpOptionsId"),
    (Kind::InternetGateway, "DescribeInternetGateways", "internetGatewaySet", "internetGatewayId"),
    (Kind::Subnet, "DescribeSubnets", "subnetSet", "subnetId"),
    (Kind::RouteTable, "DescribeRouteTables", "routeTableSet", "routeTableId"),
    (Kind::ElasticIp, "DescribeAddresses", "addressesSet", "allocationId"),
    (Kind::NatGateway, "DescribeNatGateways", "natGatewaySet", "natGatewayId"),
    (Kind::Volume, "DescribeVolumes", "volumeSet", "volumeId"),
    (Kind::SecurityGroup, "DescribeSecurityGroups", "securityGroupInfo", "groupId"),
];

/// Collects the EC2 resources in the answers.
pub(super) fn collect(
    answers: &Answers,
    cluster: &str,
    to: &mut Vec<(Identity, ExistingResource)>,
) {
    for (kind, operation, list, id) in NAMED {
        for one in answers.each(operation, list) {
            let gone = ["deleting", "deleted", "failed"].contains(&one.text("state"));
            if gone && kind == Kind::NatGateway {
                continue;
            }
            let tags = tags(one.list("tagSet"));
            let name = match kind {
                Kind::SecurityGroup => one.text("groupName"),
                _ => tags.get("Name").map_or("", String::as_str),
            };
            let mut fields = fields_of(kind, one, answers);
            put_tags(&mut fields, &tags);
            let (owned, around) = (is_owned(&tags, cluster), around(kind, one));
            let found = ExistingResource { id: one.text(id).to_owned(), fields, owned, around };
            parts(kind, one, name, owned, to);
            to.push(((kind, name.to_owned()), found));
        }
    }
    for one in answers.each("DescribeKeyPairs", "keySet") {
        let (name, tags) = (one.text("keyName").to_owned(), tags(one.list("tagSet")));
        let mut fields = Fields::new();
        put_tags(&mut fields, &tags);
        let owned = is_owned(&tags, cluster);
        let around = one.text("keyPairId").to_owned();
        to.push((
            (Kind::SshKey, name.clone()),
            ExistingResource { id: name, fields, owned, around },
        ));
    }
}

/// Returns the further parameters of a deletion.
fn around(kind: Kind, one: &Value) -> String {
    match kind {
        Kind::InternetGateway => one
            .list("attachmentSet")
            .first()
            .map(|to| to.text("vpcId"))
            .unwrap_or_default()
            .to_owned(),
        Kind::ElasticIp => one.text("associationId").to_owned(),
        _ => String::new(),
    }
}

fn fields_of(kind: Kind, one: &Value, answers: &Answers) -> Fields {
    let text = |path: &str| one.text(path).to_owned();
    match kind {
        Kind::Vpc => {
            let names = answers.about("DescribeVpcAttribute", "VpcId", one.text("vpcId"));
            let names = names.map(|answer| answer.text("enableDnsHostnames.value"));
            let ipv6 = !one.list("ipv6CidrBlockAssociationSet").is_empty();
            fields([
                ("CIDR", text("cidrBlock")),
                ("IPv6", ipv6.to_string()),
                ("DNSHostnames", names.unwrap_or("false").to_owned()),
            ])
        }
        Kind::DhcpOptions => {
            let option = |key: &str| {
                let all = one.list("dhcpConfigurationSet").iter();
                let values =
                    all.filter(|set| set.text("key") == key).flat_map(|set| set.list("valueSet"));
                sorted(values.map(|value| value.text("value").to_owned()).collect())
            };
            fields([
                ("DomainName", option("domain-name")),
                ("Servers", option("domain-name-servers")),
            ])
        }
        Kind::InternetGateway => fields([("VPC", around(kind, one))]),
        Kind::Subnet => fields([
            ("VPC", text("vpcId")),
            ("CIDR", text("cidrBlock")),
            ("Zone", text("availabilityZone")),
            ("NamedByID", text("privateDnsNameOptionsOnLaunch.enableResourceNameDnsARecord")),
        ]),
        Kind::RouteTable => fields([("VPC", text("vpcId"))]),
        Kind::NatGateway => {
            let address = one.list("natGatewayAddressSet").first();
            let address = address.map(|one| one.text("allocationId")).unwrap_or_default();
            fields([("Subnet", text("subnetId")), ("Address", address.to_owned())])
        }
        Kind::SecurityGroup => {
            fields([("VPC", text("vpcId")), ("Description", text("groupDescription"))])
        }
        Kind::Volume => {
            let encrypted = if one.text("encrypted") == "true" { "true" } else { "false" };
            let mut all = fields([
                ("Zone", text("availabilityZone")),
                ("Size", text("size")),
                ("Type", text("volumeType")),
                ("Encrypted", encrypted.to_owned()),
            ]);
            for (name, member) in [("IOPS", "iops"), ("Throughput", "throughput")] {
                all.insert(name.to_owned(), text(member));
            }
            all
        }
        _ => Fields::new(),
    }
}

/// Collects the resources that are described within another one.
fn parts(
    kind: Kind,
    one: &Value,
    name: &str,
    owned: bool,
    to: &mut Vec<(Identity, ExistingResource)>,
) {
    let mut put = |kind, identity: String, id: String, fields: Fields, around: &str| {
        let around = around.to_owned();
        to.push(((kind, identity), ExistingResource { id, fields, owned, around }));
    };
    match kind {
        Kind::Vpc => {
            let main = one.text("cidrBlock");
            for block in one.list("cidrBlockAssociationSet") {
                let cidr = block.text("cidrBlock").to_owned();
                if cidr != main {
                    put(Kind::VpcCidr, cidr.clone(), cidr, Fields::new(), "");
                }
            }
            let options = one.text("dhcpOptionsId").to_owned();
            let all = fields([("Options", options.clone())]);
            put(Kind::DhcpOptionsAssociation, one.text("vpcId").to_owned(), options, all, "");
        }
        Kind::RouteTable => {
            let table = one.text("routeTableId");
            for entry in one.list("associationSet").iter().filter(|entry| entry.has("subnetId")) {
                let id = entry.text("routeTableAssociationId").to_owned();
                let all = fields([("Table", table.to_owned())]);
                put(Kind::RouteTableAssociation, entry.text("subnetId").to_owned(), id, all, "");
            }
            for route in
                one.list("routeSet").iter().filter(|route| route.text("gatewayId") != "local")
            {
                let destination = ["destinationCidrBlock", "destinationIpv6CidrBlock"]
                    .map(|field| route.text(field))
                    .concat();
                let via = VIAS.iter().map(|(member, _)| route.text(member)).collect::<String>();
                let all = fields([("Via", via)]);
                let identity = format!("{table} {destination}");
                put(Kind::Route, identity.clone(), identity, all, "");
            }
        }
        Kind::SecurityGroup => {
            let group = one.text("groupId");
            for (list, egress) in [("ipPermissions", false), ("ipPermissionsEgress", true)] {
                for rule in one.list(list).iter().flat_map(|entry| rules(group, egress, entry)) {
                    put(Kind::SecurityGroupRule, rule.clone(), rule, Fields::new(), name);
                }
            }
        }
        _ => {}
    }
}

/// The targets of a route: their names in answers and in requests.
pub(super) const VIAS: [(&str, &str); 6] = [
    ("gatewayId", "GatewayId"),
    ("natGatewayId", "NatGatewayId"),
    ("transitGatewayId", "TransitGatewayId"),
    ("vpcPeeringConnectionId", "VpcPeeringConnectionId"),
    ("instanceId", "InstanceId"),
    ("egressOnlyInternetGatewayId", "EgressOnlyInternetGatewayId"),
];

/// Returns the wanted target of a route: the parameter and its value.
pub(super) fn via(ids: &Ids, via: &RouteTarget) -> (&'static str, String) {
    match via {
        RouteTarget::Internet(to) => ("GatewayId", id(ids, to)),
        RouteTarget::Nat(to) => ("NatGatewayId", id(ids, to)),
        RouteTarget::EgressOnly(to) => ("EgressOnlyInternetGatewayId", id(ids, to)),
        RouteTarget::GivenInternet(id) => ("GatewayId", id.clone()),
        RouteTarget::GivenNat(id) => ("NatGatewayId", id.clone()),
        RouteTarget::GivenEgressOnly(id) => ("EgressOnlyInternetGatewayId", id.clone()),
        RouteTarget::Instance(id) => ("InstanceId", id.clone()),
        RouteTarget::Transit(id) => ("TransitGatewayId", id.clone()),
        RouteTarget::Peering(id) => ("VpcPeeringConnectionId", id.clone()),
    }
}

/// Returns the texts that identify the rules of an entry: group, direction, protocol, ports and peer.
fn rules(group: &str, egress: bool, entry: &Value) -> Vec<String> {
    let protocol = entry.text("ipProtocol");
    let ports = match (protocol, entry.text("fromPort"), entry.text("toPort")) {
        ("-1", ..) | (_, "", _) => "all".to_owned(),
        (_, from, to) => format!("{from}-{to}"),
    };
    let lists = [
        ("groups", "groupId"),
        ("ipRanges", "cidrIp"),
        ("ipv6Ranges", "cidrIpv6"),
        ("prefixListIds", "prefixListId"),
    ];
    let peers =
        lists.iter().flat_map(|(list, member)| entry.list(list).iter().map(|one| one.text(member)));
    peers.map(|peer| rule_text(group, egress, protocol, &ports, peer)).collect()
}

fn rule_text(group: &str, egress: bool, protocol: &str, ports: &str, peer: &str) -> String {
    let direction = if egress { "to" } else { "from" };
    format!("{group} {protocol} {ports} {direction} {peer}")
}

/// Returns the text that identifies a wanted rule, in the form of [`rules`].
pub(super) fn rule(ids: &Ids, rule: &Rule) -> String {
    let peer = match &rule.peer {
        Peer::Group(group) => id(ids, group),
        Peer::V4(text) | Peer::V6(text) | Peer::Prefixes(text) => text.clone(),
    };
    let (protocol, ports) = match (&rule.protocol, rule.ports) {
        (None, _) => ("-1", "all".to_owned()),
        // A protocol without ports covers all of them.
        (Some(protocol), None) if protocol.parse::<u8>().is_ok() => {
            (protocol.as_str(), "all".to_owned())
        }
        (Some(protocol), ports) => {
            let (from, to) = ports.unwrap_or((0, 65535));
            (protocol.as_str(), format!("{from}-{to}"))
        }
    };
    rule_text(&id(ids, &rule.group), rule.egress, protocol, &ports, &peer)
}

/// Returns the identifying value of a network resource; `None` while it depends on one that does not exist.
pub(super) fn identity(resource: &Resource, ids: &Ids) -> Option<String> {
    let known = |to: &Ref| ids.get(to).cloned();
    match &resource.body {
        Body::DhcpOptionsAssociation { vpc, .. } => known(vpc),
        Body::RouteTableAssociation { subnet, .. } => known(subnet),
        Body::Route { table, to, .. } => Some(format!("{} {to}", known(table)?)),
        Body::SecurityGroupRule(one) => Some(rule(ids, one)),
        _ => Some(resource.name.clone()),
    }
}

pub(super) fn wanted(resource: &Resource, ids: &Ids) -> Fields {
    let number = |number: i64| number.to_string();
    match &resource.body {
        Body::Vpc { cidr } => fields([
            ("CIDR", cidr.clone()),
            ("IPv6", "true".to_owned()),
            ("DNSHostnames", "true".to_owned()),
        ]),
        Body::DhcpOptions { domain, servers } => {
            fields([("DomainName", domain.clone()), ("Servers", sorted(servers.clone()))])
        }
        Body::DhcpOptionsAssociation { options, .. } => fields([("Options", id(ids, options))]),
        Body::InternetGateway { vpc } | Body::RouteTable { vpc, .. } => {
            fields([("VPC", id(ids, vpc))])
        }
        Body::Subnet(subnet) => {
            let mut all = fields([
                ("VPC", id(ids, &subnet.vpc)),
                ("CIDR", subnet.cidr.clone()),
                ("Zone", subnet.zone.clone()),
            ]);
            if subnet.named_by_id {
                all.insert("NamedByID".to_owned(), "true".to_owned());
            }
            all
        }
        Body::RouteTableAssociation { table, .. } => fields([("Table", id(ids, table))]),
        Body::Route { via: one, .. } => fields([("Via", via(ids, one).1)]),
        Body::NatGateway { address, subnet } => {
            let mut all = fields([("Subnet", id(ids, subnet))]);
            all.extend(address.as_ref().map(|to| ("Address".to_owned(), id(ids, to))));
            all
        }
        Body::SecurityGroup { vpc, description } => {
            fields([("VPC", id(ids, vpc)), ("Description", description.clone())])
        }
        Body::Volume { zone, ebs } => {
            let mut all = fields([
                ("Zone", zone.clone()),
                ("Size", number(ebs.size)),
                ("Type", ebs.class.clone()),
                ("Encrypted", ebs.encrypted.to_string()),
            ]);
            for (name, value) in [("IOPS", ebs.iops), ("Throughput", ebs.throughput)] {
                all.extend(value.map(|value| (name.to_owned(), number(value))));
            }
            all
        }
        _ => Fields::new(),
    }
}
