//! Security groups and their rules.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    answers::Answers,
    call::Call,
    ec2::{Listing, delete, has_owner, with_tags},
    existing::{ExistingResource, Fields, IdentifiedResource, Ids},
    fields::{fields, id},
    kind::Ref,
    operations::{Creation, Header, IdSource, Operations},
    scope::Scope,
    terraform::{
        hcl::{Block, Expr},
        writer::Writer,
    },
};
use crate::error::Error;

const SECURITY_GROUPS: Listing =
    Listing { operation: "DescribeSecurityGroups", list: "securityGroupInfo", id: "groupId" };
/// The port range of a rule without ports, where the provider requires one.
const ALL_PORTS: (i64, i64) = (0, 65535);

/// A security group.
#[derive(Clone, Debug)]
pub struct SecurityGroup {
    /// The VPC.
    pub vpc: Ref,
    /// The description.
    pub description: String,
}

impl Operations for SecurityGroup {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![SECURITY_GROUPS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = SECURITY_GROUPS.items(answers).map(|item| {
            let text = |path: &str| item.text(path).to_owned();
            let fields =
                fields([("VPC", text("vpcId")), ("Description", text("groupDescription"))]);
            (text("groupName"), SECURITY_GROUPS.existing(scope, item, fields))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteSecurityGroup", "GroupId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("VPC", id(ids, &self.vpc)), ("Description", self.description.clone())])
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"VpcId": id(ids, &self.vpc), "GroupName": own.name, "GroupDescription": self.description});
        let request = with_tags(request, "security-group", own.tags);
        Ok(Creation::ec2("CreateSecurityGroup", request, "groupId"))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("description", &self.description).text("name", own.name).tags(own.tags);
        block.value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}

/// A rule of a security group.
#[derive(Clone, Debug)]
pub struct SecurityGroupRule {
    /// The group.
    pub group: Ref,
    /// The source, or the destination of an egress rule.
    pub peer: Peer,
    /// `true` for an egress rule.
    pub egress: bool,
    /// The protocol; `None` for all.
    pub protocol: Option<String>,
    /// The first and last port, or the ICMP type and code; `None` for all.
    pub ports: Option<(i64, i64)>,
}

/// The peer of a security group's rule.
#[derive(Clone, Debug)]
pub enum Peer {
    /// The machines of a security group.
    Group(Ref),
    /// An IPv4 range.
    V4(String),
    /// An IPv6 range.
    V6(String),
    /// The ID of a prefix list.
    Prefixes(String),
}

impl SecurityGroupRule {
    /// Returns the text that identifies the rule, in the form of [`rule_identities`].
    fn identity_text(&self, ids: &Ids) -> String {
        let peer = match &self.peer {
            Peer::Group(group) => id(ids, group),
            Peer::V4(text) | Peer::V6(text) | Peer::Prefixes(text) => text.clone(),
        };
        let (protocol, ports) = match (&self.protocol, self.ports) {
            (None, _) => ("-1", "all".to_owned()),
            // A protocol without ports covers all of them.
            (Some(protocol), None) if protocol.parse::<u8>().is_ok() => {
                (protocol.as_str(), "all".to_owned())
            }
            (Some(protocol), ports) => {
                let (from, to) = ports.unwrap_or(ALL_PORTS);
                (protocol.as_str(), format!("{from}-{to}"))
            }
        };
        let direction = direction(self.egress);
        format!("{} {protocol} {ports} {direction} {peer}", id(ids, &self.group))
    }
}

fn direction(egress: bool) -> &'static str {
    if egress { "to" } else { "from" }
}

/// Returns the texts that identify the rules of an entry: group, protocol, ports, direction and peer.
fn rule_identities(group: &str, egress: bool, entry: &Value) -> Vec<String> {
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
    let peers = lists
        .iter()
        .flat_map(|(list, member)| entry.items(list).iter().map(move |one| one.text(*member)));
    let direction = direction(egress);
    peers.map(|peer| format!("{group} {protocol} {ports} {direction} {peer}")).collect()
}

/// Parses a rule's identity and returns its call; `verb` is `Authorize` or `Revoke`.
fn permission(verb: &str, rule: &str) -> Option<Call> {
    let mut parts = rule.split(' ');
    let (group, protocol, ports, direction, peer) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let mut permission = json!({"IpProtocol": protocol});
    if let Some((from, to)) = ports.rsplit_once('-').filter(|_| ports != "all") {
        permission.put("FromPort", from);
        permission.put("ToPort", to);
    }
    let (list, member) = match peer {
        _ if peer.starts_with("sg-") => ("Groups", "GroupId"),
        _ if peer.starts_with("pl-") => ("PrefixListIds", "PrefixListId"),
        _ if peer.contains(':') => ("Ipv6Ranges", "CidrIpv6"),
        _ => ("IpRanges", "CidrIp"),
    };
    permission.put(list, json!([{member: peer}]));
    let operation = match (verb, direction) {
        ("Authorize", "from") => "AuthorizeSecurityGroupIngress",
        ("Authorize", _) => "AuthorizeSecurityGroupEgress",
        (_, "from") => "RevokeSecurityGroupIngress",
        _ => "RevokeSecurityGroupEgress",
    };
    Some(Call::ec2(operation, json!({"GroupId": group, "IpPermissions": [permission]})))
}

impl Operations for SecurityGroupRule {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let mut all = Vec::new();
        for group in SECURITY_GROUPS.items(answers) {
            let (id, owned) = (group.text("groupId"), has_owner(scope, group));
            for (list, egress) in [("ipPermissions", false), ("ipPermissionsEgress", true)] {
                let entries = group.items(list).iter();
                for rule in entries.flat_map(|entry| rule_identities(id, egress, entry)) {
                    let id = rule.clone();
                    all.push((rule, ExistingResource { id, owned, ..ExistingResource::default() }));
                }
            }
        }
        all
    }

    fn delete(identity: &str, _found: &ExistingResource) -> Vec<Call> {
        permission("Revoke", identity).into_iter().collect()
    }

    fn refs(&self) -> Vec<&Ref> {
        match &self.peer {
            Peer::Group(peer) => vec![&self.group, peer],
            Peer::V4(_) | Peer::V6(_) | Peer::Prefixes(_) => vec![&self.group],
        }
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        Some(self.identity_text(ids))
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let call = permission("Authorize", &self.identity_text(ids));
        Ok(Creation::new(call.ok_or_else(|| own.internal_error())?, IdSource::Name))
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let ports = match (&self.protocol, self.ports) {
            (None, _) => (0, 0),
            (Some(_), ports) => ports.unwrap_or(ALL_PORTS),
        };
        block.int("from_port", ports.0).int("to_port", ports.1);
        block.text("protocol", self.protocol.as_deref().unwrap_or("-1"));
        block.text("type", if self.egress { "egress" } else { "ingress" });
        block.value("security_group_id", writer.link(&self.group));
        let (field, peer) = match &self.peer {
            Peer::Group(group) => ("source_security_group_id", writer.link(group)),
            Peer::V4(range) => ("cidr_blocks", Expr::List(vec![Expr::text(range)])),
            Peer::V6(range) => ("ipv6_cidr_blocks", Expr::List(vec![Expr::text(range)])),
            Peer::Prefixes(id) => ("prefix_list_ids", Expr::List(vec![Expr::text(id)])),
        };
        block.value(field, peer);
        Ok(block)
    }
}
