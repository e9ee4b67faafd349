//! Security groups and their rules.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    ec2::{Listing, delete, has_owner, with_tags},
    family::*,
    fields::{fields, id},
};

const SECURITY_GROUPS: Listing =
    Listing { operation: "DescribeSecurityGroups", list: "securityGroupInfo", id: "groupId" };
/// AWS' protocol for all protocols.
const ALL_PROTOCOLS: &str = "-1";
/// The port range of a rule without ports, where AWS or the provider requires one.
const ALL_PORTS: (i64, i64) = (0, 65535);
/// The ICMP type and code of a rule for all types. AWS requires all codes for all types.
const ALL_TYPES: (i64, i64) = (-1, -1);

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

/// The traffic of a rule, in one form for all forms that AWS accepts and returns.
#[derive(Debug, PartialEq)]
struct Traffic<'a> {
    /// The protocol's name, its number if AWS has no name for it, or `-1` for all protocols.
    protocol: &'a str,
    /// The first and last port, or the ICMP type and code; `None` for all.
    ports: Option<(i64, i64)>,
}

impl<'a> Traffic<'a> {
    /// Normalizes a protocol and its ports. An empty protocol is all protocols.
    fn new(protocol: &'a str, ports: Option<(i64, i64)>) -> Self {
        let protocol = match protocol {
            "" => ALL_PROTOCOLS,
            "1" => "icmp",
            "6" => "tcp",
            "17" => "udp",
            "58" => "icmpv6",
            other => other,
        };
        let ports = match protocol {
            "tcp" | "udp" => Some(ports.unwrap_or(ALL_PORTS)),
            "icmp" | "icmpv6" => ports.filter(|(kind, _)| *kind != ALL_TYPES.0),
            // AWS ignores the ports of other protocols.
            _ => None,
        };
        Self { protocol, ports }
    }

    /// Parses the form of [`Display`](std::fmt::Display).
    fn parse(protocol: &'a str, ports: &str) -> Option<Self> {
        if ports == "all" {
            return Some(Self::new(protocol, None));
        }
        let (from, to) = ports.split_once('-')?;
        Some(Self::new(protocol, Some((from.parse().ok()?, to.parse().ok()?))))
    }

    /// Returns the traffic in the form of calls, which require ports for TCP, UDP and ICMP.
    fn permission(&self) -> Value {
        let mut permission = json!({"IpProtocol": self.protocol});
        let types = ["icmp", "icmpv6"].contains(&self.protocol).then_some(ALL_TYPES);
        if let Some((from, to)) = self.ports.or(types) {
            permission.put("FromPort", from);
            permission.put("ToPort", to);
        }
        permission
    }
}

impl std::fmt::Display for Traffic<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ports {
            None => write!(f, "{} all", self.protocol),
            Some((from, to)) => write!(f, "{} {from}-{to}", self.protocol),
        }
    }
}

impl SecurityGroupRule {
    /// Returns the text that identifies the rule, in the form of [`rule_identities`].
    fn identity_text(&self, ids: &Ids) -> String {
        let peer = match &self.peer {
            Peer::Group(group) => id(ids, group),
            Peer::V4(text) | Peer::V6(text) | Peer::Prefixes(text) => text.clone(),
        };
        let traffic = Traffic::new(self.protocol.as_deref().unwrap_or_default(), self.ports);
        let direction = direction(self.egress);
        format!("{} {traffic} {direction} {peer}", id(ids, &self.group))
    }
}

fn direction(egress: bool) -> &'static str {
    if egress { "to" } else { "from" }
}

/// Returns the texts that identify the rules of an entry: group, protocol, ports, direction and peer.
fn rule_identities(group: &str, egress: bool, entry: &Value) -> Vec<String> {
    let port = |name: &str| entry.text(name).parse::<i64>().ok();
    let traffic = Traffic::new(entry.text("ipProtocol"), port("fromPort").zip(port("toPort")));
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
    peers.map(|peer| format!("{group} {traffic} {direction} {peer}")).collect()
}

/// Parses a rule's identity and returns its call; `verb` is `Authorize` or `Revoke`.
fn permission(verb: &str, rule: &str) -> Option<Call> {
    let mut parts = rule.split(' ');
    let (group, protocol, ports, direction, peer) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let mut permission = Traffic::parse(protocol, ports)?.permission();
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
        block.text("protocol", self.protocol.as_deref().unwrap_or(ALL_PROTOCOLS));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{Kind, Tags};

    /// Returns the rule's permission as sent to AWS, with `-` for a port that is not sent.
    fn sent(protocol: Option<&str>, ports: Option<(i64, i64)>) -> (String, Value) {
        let group = Ref::new(Kind::SecurityGroup, "own");
        let rule = SecurityGroupRule {
            group: group.clone(),
            peer: Peer::V6("::/0".to_owned()),
            egress: false,
            protocol: protocol.map(str::to_owned),
            ports,
        };
        let ids = [(group, "sg-1".to_owned())].into();
        let tags = Tags::new();
        let own = Header { kind: Kind::SecurityGroupRule, name: "a", tags: &tags };
        let call = rule.create(&own, &ids).unwrap().call;
        let permission = call.parameters.items("IpPermissions")[0].clone();
        (rule.identity_text(&ids), permission)
    }

    /// The values that AWS documents for `IpPermission`: the model's protocol and ports, what is sent, and the forms
    /// in which AWS may return the rule.
    #[test]
    fn sends_and_recognizes_documented_protocols_and_ports() {
        type Ports<T> = Option<(T, T)>;
        type Case<'a> =
            (Option<&'a str>, Ports<i64>, &'a str, Ports<i64>, &'a [(&'a str, Ports<&'a str>)]);
        let cases: [Case<'_>; 11] = [
            (None, None, "-1", None, &[("-1", None), ("-1", Some(("-1", "-1")))]),
            (
                Some("tcp"),
                Some((22, 22)),
                "tcp",
                Some((22, 22)),
                &[("tcp", Some(("22", "22"))), ("6", Some(("22", "22")))],
            ),
            (Some("tcp"), None, "tcp", Some(ALL_PORTS), &[("tcp", Some(("0", "65535")))]),
            (
                Some("udp"),
                Some((1, 65535)),
                "udp",
                Some((1, 65535)),
                &[("udp", Some(("1", "65535"))), ("17", Some(("1", "65535")))],
            ),
            (
                Some("icmp"),
                Some((3, 4)),
                "icmp",
                Some((3, 4)),
                &[("icmp", Some(("3", "4"))), ("1", Some(("3", "4")))],
            ),
            (Some("icmp"), Some((3, -1)), "icmp", Some((3, -1)), &[("icmp", Some(("3", "-1")))]),
            (Some("icmp"), Some((-1, -1)), "icmp", Some((-1, -1)), &[("icmp", Some(("-1", "-1")))]),
            (Some("icmp"), None, "icmp", Some((-1, -1)), &[("icmp", Some(("-1", "-1")))]),
            (
                Some("icmpv6"),
                Some((-1, -1)),
                "icmpv6",
                Some((-1, -1)),
                &[
                    ("icmpv6", Some(("-1", "-1"))),
                    ("icmpv6", None),
                    ("58", Some(("-1", "-1"))),
                    ("58", None),
                ],
            ),
            (Some("icmpv6"), Some((2, 0)), "icmpv6", Some((2, 0)), &[("58", Some(("2", "0")))]),
            (Some("4"), None, "4", None, &[("4", None), ("4", Some(("0", "65535")))]),
        ];
        for (protocol, ports, wire, wire_ports, forms) in cases {
            let (identity, permission) = sent(protocol, ports);
            let mut wanted = json!({"IpProtocol": wire, "Ipv6Ranges": [{"CidrIpv6": "::/0"}]});
            if let Some((from, to)) = wire_ports {
                wanted.put("FromPort", from);
                wanted.put("ToPort", to);
            }
            assert_eq!(permission, wanted, "{protocol:?} {ports:?}");
            for (protocol, ports) in forms {
                let mut entry =
                    json!({"ipProtocol": protocol, "ipv6Ranges": [{"cidrIpv6": "::/0"}]});
                if let Some((from, to)) = ports {
                    entry.put("fromPort", *from);
                    entry.put("toPort", *to);
                }
                assert_eq!(rule_identities("sg-1", false, &entry), [identity.as_str()], "{entry}");
                // The rule is revoked in the form in which it was authorized.
                let call = super::permission("Revoke", &identity).unwrap();
                assert_eq!(call.parameters.items("IpPermissions")[0], permission, "{entry}");
            }
        }
    }

    #[test]
    fn returns_no_call_for_unusable_ports() {
        for ports in ["", "-", "1-", "-1-2", "a-b", "1-99999999999999999999"] {
            let rule = format!("sg-1 tcp {ports} from 0.0.0.0/0");
            assert_eq!(permission("Revoke", &rule), None, "{ports}");
        }
    }
}
