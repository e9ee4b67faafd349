//! The compared fields of resources: text by name, in one form for wanted and existing ones.

use kops_api::Spec as _;
use serde_json::Value;

use super::{Fields, Ids, machines, network, serve};
use crate::model::aws::{Body, Kind, Ref, Resource, Tags};

/// The prefix of tags among the fields.
pub(super) const TAG: &str = "Tags.";

/// Returns the ID of a referenced resource. A resource that does not exist yet gets a placeholder, which differs from
/// every ID.
pub(super) fn id(ids: &Ids, to: &Ref) -> String {
    ids.get(to).cloned().unwrap_or_else(|| format!("new {:?} {}", to.kind, to.name))
}

/// Returns several IDs as one sorted text.
pub(super) fn id_list(ids: &Ids, all: &[Ref]) -> String {
    sorted(all.iter().map(|to| id(ids, to)).collect())
}

pub(super) fn sorted(mut texts: Vec<String>) -> String {
    texts.sort();
    texts.dedup();
    texts.join(",")
}

/// Collects fields from pairs.
pub(super) fn fields<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn put_tags(fields: &mut Fields, tags: &Tags) {
    fields.extend(tags.iter().map(|(key, value)| (format!("{TAG}{key}"), value.clone())));
}

/// Parses tags of an answer. Their members are in lower case only in EC2.
pub(super) fn tags(list: &[Value]) -> Tags {
    let pair = |tag: &Value| {
        let either = |small: &str, large: &str| match tag.text(small) {
            "" => tag.text(large).to_owned(),
            text => text.to_owned(),
        };
        (either("key", "Key"), either("value", "Value"))
    };
    list.iter().map(pair).collect()
}

/// Reports whether tags mark a resource as the cluster's own.
pub(super) fn is_owned(tags: &Tags, cluster: &str) -> bool {
    tags.get(&format!("kubernetes.io/cluster/{cluster}")).is_some_and(|owner| owner == "owned")
}

/// Returns a JSON document with sorted members, or the text itself if it is not JSON.
pub(super) fn document(text: &str) -> String {
    fn ordered(value: &Value, into: &mut String) {
        match value {
            Value::Object(members) => {
                let mut names: Vec<_> = members.iter().collect();
                names.sort_by(|a, b| a.0.cmp(b.0));
                into.push('{');
                for (name, value) in names {
                    into.push_str(&format!("{}:", Value::from(name.as_str())));
                    ordered(value, into);
                    into.push(',');
                }
                into.push('}');
            }
            Value::Array(items) => {
                into.push('[');
                for item in items {
                    ordered(item, into);
                    into.push(',');
                }
                into.push(']');
            }
            other => into.push_str(&other.to_string()),
        }
    }
    match serde_json::from_str::<Value>(text) {
        Ok(tree) => {
            let mut into = String::new();
            ordered(&tree, &mut into);
            into
        }
        Err(_) => text.to_owned(),
    }
}

/// Returns the wanted fields of a resource.
pub(super) fn wanted(resource: &Resource, ids: &Ids) -> Fields {
    let mut fields = match resource.kind() {
        Kind::LaunchTemplate | Kind::ScalingGroup | Kind::LifecycleHook => {
            machines::wanted(resource, ids)
        }
        Kind::Vpc
        | Kind::VpcCidr
        | Kind::DhcpOptions
        | Kind::DhcpOptionsAssociation
        | Kind::InternetGateway
        | Kind::Subnet
        | Kind::RouteTable
        | Kind::RouteTableAssociation
        | Kind::Route
        | Kind::ElasticIp
        | Kind::NatGateway
        | Kind::SecurityGroup
        | Kind::SecurityGroupRule
        | Kind::Volume
        | Kind::SshKey => network::wanted(resource, ids),
        _ => serve::wanted(resource, ids),
    };
    if has_tags(resource) {
        put_tags(&mut fields, &resource.tags);
    }
    fields
}

/// Reports whether a resource's tags are compared. Tags of other kinds are only written at creation.
fn has_tags(resource: &Resource) -> bool {
    !matches!(
        resource.body,
        Body::InstanceProfile { .. }
            | Body::OidcProvider { .. }
            | Body::Queue { .. }
            | Body::EventRule { .. }
    )
}
