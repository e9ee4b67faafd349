//! What is compared: texts by name, of what is wanted and of what is there alike.

use kops_api::Spec as _;
use serde_json::Value;

use super::{Fields, Ids, machines, network, serve};
use crate::model::aws::{Body, Kind, Ref, Resource, Tags};

/// The prefix of fields that are tags.
pub(super) const TAG: &str = "Tags.";

/// The id of what is referred to. What is not there yet has no id, and what has none differs from all that is there.
pub(super) fn id(ids: &Ids, to: &Ref) -> String {
    ids.get(to).cloned().unwrap_or_else(|| format!("new {:?} {}", to.kind, to.name))
}

/// Several ids, in an order of their own.
pub(super) fn id_list(ids: &Ids, all: &[Ref]) -> String {
    sorted(all.iter().map(|to| id(ids, to)).collect())
}

pub(super) fn sorted(mut texts: Vec<String>) -> String {
    texts.sort();
    texts.dedup();
    texts.join(",")
}

/// Fields of pairs that say something.
pub(super) fn fields<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn put_tags(fields: &mut Fields, tags: &Tags) {
    fields.extend(tags.iter().map(|(key, value)| (format!("{TAG}{key}"), value.clone())));
}

/// Tags of an answer, whose members begin with small letters in EC2 alone.
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

/// Whether tags say that something is a cluster's own.
pub(super) fn is_owned(tags: &Tags, cluster: &str) -> bool {
    tags.get(&format!("kubernetes.io/cluster/{cluster}")).is_some_and(|owner| owner == "owned")
}

/// A document in one order of its members, however it was written. What is no document is itself.
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

/// What a resource is to be.
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

/// Whether a resource's tags are read where it is read: of others they are written once.
fn has_tags(resource: &Resource) -> bool {
    !matches!(
        resource.body,
        Body::InstanceProfile { .. }
            | Body::OidcProvider { .. }
            | Body::Queue { .. }
            | Body::EventRule { .. }
    )
}
