//! Upstream's descriptions of built-in types and their members, for OpenAPI documents and `kubectl explain`.
//!
//! Read [`describe`] first. The schemas themselves are in `api-schema`.
//!
//! Invariants: the texts are those of `k8s-openapi`, from which the build extracts them, so this repository contains
//! none. They are compressed in the binary until their first use. An existing description is never replaced.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::LazyLock;

use serde_json::{Value, json};

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.z"));

/// Returns the description of a type (`io.k8s.api.core.v1.PodSpec`) or of one of its members. `member` is empty for the
/// type.
pub fn description(type_name: &str, member: &str) -> Option<String> {
    let escaped = table().get(type_name)?.get(member).copied();
    serde_json::from_str(&format!("\"{}\"", escaped?)).ok()
}

/// Returns the description of a member that all objects or all lists have.
fn shared_description(member: &str, schema: &Value) -> Option<String> {
    // A reference with siblings, such as a default, is wrapped in `allOf`.
    let target = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    match (member, target) {
        ("apiVersion" | "kind", None) => description("io.k8s.api.core.v1.Pod", member),
        ("metadata", Some(target)) if target.ends_with(".ObjectMeta") => {
            description("io.k8s.api.core.v1.Pod", member)
        }
        ("metadata", Some(target)) if target.ends_with(".ListMeta") => {
            description("io.k8s.apimachinery.pkg.apis.meta.v1.Status", member)
        }
        _ => None,
    }
}

/// Adds the missing descriptions to the OpenAPI v3 schema of a type and its members.
pub fn describe(type_name: &str, schema: &mut Value) {
    insert(schema, description(type_name, ""));
    let Some(Value::Object(members)) = schema.get_mut("properties") else { return };
    for (member, schema) in members {
        let text = description(type_name, member);
        insert(schema, text.or_else(|| shared_description(member, schema)));
    }
}

fn insert(schema: &mut Value, text: Option<String>) {
    let Some(text) = text.filter(|_| schema.get("description").is_none()) else { return };
    // A reference cannot have other members beside it.
    if schema.get("$ref").is_some() {
        *schema = json!({"allOf": [schema.take()]});
    }
    if let Value::Object(schema) = schema {
        schema.insert("description".to_owned(), text.into());
    }
}

type Table = HashMap<&'static str, HashMap<&'static str, &'static str>>;

fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let mut text = String::new();
        // Data that this build packed always unpacks. Without descriptions everything else still works.
        let unpacked = flate2::read::ZlibDecoder::new(PACKED).read_to_string(&mut text);
        debug_assert!(unpacked.is_ok());
        let mut table = Table::new();
        for line in Box::leak(text.into_boxed_str()).lines() {
            if let [name, member, description] = line.splitn(3, '\t').collect::<Vec<_>>()[..] {
                table.entry(name).or_default().insert(member, description);
            }
        }
        table
    });
    &TABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_types_and_members() {
        let port = description("io.k8s.api.core.v1.ContainerPort", "containerPort").unwrap();
        assert!(port.starts_with("Number of port to expose"), "{port}");
        let protocol = description("io.k8s.api.core.v1.ContainerPort", "protocol").unwrap();
        assert!(protocol.ends_with("Defaults to \"TCP\"."), "{protocol}");
        assert!(
            description("io.k8s.api.core.v1.Pod", "").unwrap().contains("collection of containers")
        );
        assert_eq!(description("io.k8s.api.core.v1.Pod", "bogus"), None);
    }

    #[test]
    fn adds_missing_descriptions_only() {
        let mut pod = json!({"properties": {
            "spec": {"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"},
            "kind": {"type": "string", "description": "mine"}}});
        describe("io.k8s.api.core.v1.Pod", &mut pod);
        assert!(pod["description"].is_string());
        assert!(pod["properties"]["spec"]["description"].is_string());
        assert_eq!(
            pod["properties"]["spec"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.api.core.v1.PodSpec"
        );
        assert_eq!(pod["properties"]["kind"]["description"], "mine");
    }

    #[test]
    fn describes_metadata_of_lists_with_default() {
        let target =
            json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"});
        let metadata = json!({"allOf": [target], "default": {}});
        let mut list = json!({"properties": {"metadata": metadata.clone()}});
        describe("io.k8s.api.core.v1.PodList", &mut list);
        let mut described = list["properties"]["metadata"].clone();
        assert!(described["description"].as_str().unwrap().contains("list metadata"));
        described.as_object_mut().unwrap().remove("description");
        assert_eq!(described, metadata);
    }
}
