//! The compared fields of resources: text by name, in one form for desired and existing ones.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    existing::{Fields, Ids},
    kind::{Ref, Tags},
};

/// The prefix of tags among the fields.
pub(crate) const TAG: &str = "Tags.";

/// Returns the ID of a referenced resource. A resource that does not exist yet gets a placeholder, which differs from
/// every ID.
pub(crate) fn id(ids: &Ids, to: &Ref) -> String {
    ids.get(to).cloned().unwrap_or_else(|| format!("new {:?} {}", to.kind, to.name))
}

/// Returns several IDs as one sorted text.
pub(crate) fn id_list(ids: &Ids, all: &[Ref]) -> String {
    sorted(all.iter().map(|to| id(ids, to)).collect())
}

/// Returns texts as one sorted text without duplicates.
pub(crate) fn sorted(mut texts: Vec<String>) -> String {
    texts.sort();
    texts.dedup();
    texts.join(",")
}

/// Collects fields from pairs.
pub(crate) fn fields<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Adds tags to fields.
pub(crate) fn put_tags(fields: &mut Fields, tags: &Tags) {
    fields.extend(tags.iter().map(|(key, value)| (format!("{TAG}{key}"), value.clone())));
}

/// Returns tags in the form of calls.
pub(crate) fn tag_pairs(tags: &Tags) -> Vec<Value> {
    tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
}

/// Parses tags of an answer. Their members are in lower case only in EC2.
pub(crate) fn tags(list: &[Value]) -> Tags {
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
pub(crate) fn is_owned(tags: &Tags, cluster: &str) -> bool {
    tags.get(&format!("kubernetes.io/cluster/{cluster}")).is_some_and(|owner| owner == "owned")
}

/// Returns a JSON document with sorted members, or the text itself if it is not JSON.
pub(crate) fn document(text: &str) -> String {
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
