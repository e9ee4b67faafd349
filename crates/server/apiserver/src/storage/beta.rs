//! Converts CustomResourceDefinitions from v1beta1, in which upstream stores them, to v1. v1beta1 is no longer served.
//!
//! Fields that v1beta1 has once for all versions are per version in v1.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

pub(crate) const API_VERSION: &str = "apiextensions.k8s.io/v1beta1";

/// The fields of v1beta1 that apply to all versions, and their names in a version of v1.
const OF_ALL_VERSIONS: [(&str, &str); 4] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// Converts a definition from v1beta1 to v1.
pub(crate) fn to_v1(definition: &mut Value) {
    definition.put(&["apiVersion"], json!("apiextensions.k8s.io/v1"));
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(name) = spec.remove("version")
        && spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        spec.insert(
            "versions".to_owned(),
            json!([{"name": name, "served": true, "storage": true}]),
        );
    }
    let shared = OF_ALL_VERSIONS.map(|(beta, name)| (name, spec.remove(beta)));
    let versions = spec.get_mut("versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten().filter_map(Value::as_object_mut) {
        for (name, value) in &shared {
            if let Some(value) = value {
                version.entry(*name).or_insert_with(|| value.clone());
            }
        }
        rename_paths(version);
    }
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        nest_webhook(conversion);
    }
}

/// The path of a column is called `JSONPath` in v1beta1.
fn rename_paths(version: &mut Map<String, Value>) {
    let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
    for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove("JSONPath") {
            column.insert("jsonPath".to_owned(), path);
        }
    }
}

fn nest_webhook(conversion: &mut Map<String, Value>) {
    let client = conversion.remove("webhookClientConfig");
    let reviews = conversion.remove("conversionReviewVersions");
    if conversion.get("strategy") != Some(&json!("Webhook")) {
        return;
    }
    let mut webhook = Map::new();
    webhook.insert("conversionReviewVersions".to_owned(), reviews.unwrap_or_default());
    if let Some(client) = client {
        webhook.insert("clientConfig".to_owned(), client);
    }
    conversion.insert("webhook".to_owned(), webhook.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_shared_fields_to_every_version() {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let mut definition = json!({
            "apiVersion": API_VERSION,
            "kind": "CustomResourceDefinition",
            "spec": {
                "group": "example.com", "version": "v1", "preserveUnknownFields": false,
                "validation": schema, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "JSONPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.size"}],
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true}],
                "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "https://a"},
                    "conversionReviewVersions": ["v1"]},
            },
        });
        to_v1(&mut definition);
        let version = |name: &str| {
            json!({"name": name, "served": true, "schema": schema, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.size"}]})
        };
        let mut first = version("v1");
        first["storage"] = json!(true);
        assert_eq!(
            definition,
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "spec": {
                    "group": "example.com", "versions": [first, version("v2")],
                    "conversion": {"strategy": "Webhook", "webhook":
                        {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]}},
                },
            })
        );
    }

    #[test]
    fn keeps_fields_of_version() {
        let mut definition = json!({"spec": {
            "version": "v1", "preserveUnknownFields": true,
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "string"}}}],
            "validation": {"openAPIV3Schema": {"type": "object"}},
            "conversion": {"strategy": "None"},
        }});
        to_v1(&mut definition);
        assert_eq!(
            definition["spec"],
            json!({
                "preserveUnknownFields": true,
                "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "string"}}}],
                "conversion": {"strategy": "None"},
            })
        );
    }

    #[test]
    fn converts_single_version_field() {
        let mut definition = json!({"spec": {"version": "v7"}});
        to_v1(&mut definition);
        assert_eq!(
            definition["spec"]["versions"],
            json!([{"name": "v7", "served": true, "storage": true}])
        );
    }
}
