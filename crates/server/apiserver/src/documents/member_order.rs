//! Serializes discovery documents with members in the order of upstream's types, because scripts search them as text.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::Value;

/// The first members of a whole document.
const WHOLE: &[&str] = &["kind", "apiVersion", "groupVersion", "metadata", "name"];
/// The first members of a resource, group or version.
const INSIDE: &[&str] = &[
    "metadata",
    "groupVersion",
    "name",
    "singularName",
    "namespaced",
    "subresource",
    "resource",
    "responseKind",
    "group",
    "version",
    "kind",
    "scope",
    "singularResource",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
    "subresources",
    "resources",
    "freshness",
];
/// The members that follow, in both.
const LAST: &[&str] = &["versions", "preferredVersion", "serverAddressByClientCIDRs"];

/// A document, or a part of one.
pub(super) struct OrderedDocument<'v> {
    value: &'v Value,
    first: &'static [&'static str],
}

/// Wraps a whole document. Members without a defined order come last.
pub(super) fn ordered(document: &Value) -> OrderedDocument<'_> {
    OrderedDocument { value: document, first: WHOLE }
}

impl OrderedDocument<'_> {
    fn place(&self, name: &str) -> usize {
        let order = self.first.iter().chain(LAST);
        order.clone().position(|known| *known == name).unwrap_or_else(|| order.count())
    }
}

impl Serialize for OrderedDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let inside = |value| OrderedDocument { value, first: INSIDE };
        match self.value {
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| self.place(name));
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, &inside(value))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&inside(item))?;
                }
                list.end()
            }
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The texts are upstream's.
    #[test]
    fn serializes_members_in_upstreams_order() {
        for text in [
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["create"],"shortNames":["deploy"],"categories":["all"],"storageVersionHash":"8aSe+NMegvE="},{"name":"deployments/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]}]}"#,
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
            r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}"#,
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[{"resource":"deployments","responseKind":{"group":"apps","version":"v1","kind":"Deployment"},"scope":"Namespaced","singularResource":"deployment","verbs":["get"],"shortNames":["deploy"],"categories":["all"],"subresources":[{"subresource":"scale","responseKind":{"group":"autoscaling","version":"v1","kind":"Scale"},"verbs":["get"]}]}],"freshness":"Current"}]}]}"#,
        ] {
            let document: Value = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&ordered(&document)).unwrap(), text);
        }
        // Additional members of other servers are preserved.
        let odd = json!({"kind": "APIGroup", "another": {"zeta": 1, "name": "n"}});
        let text = r#"{"kind":"APIGroup","another":{"name":"n","zeta":1}}"#;
        assert_eq!(serde_json::to_string(&ordered(&odd)).unwrap(), text);
    }
}
