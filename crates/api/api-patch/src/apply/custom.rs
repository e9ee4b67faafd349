//! Compares server-side apply of custom resources with upstream. The format of `custom.jsonl` is documented in
//! api-schema's tests.

use api_meta::{GroupVersionKind, Path};
use api_schema::Schema;
use serde_json::{Value, json};

use super::{ApplyError, apply};
use crate::context::Context;

fn apply_spec(schema: &Schema, spec: Value) -> Result<Value, String> {
    let ctx = Context {
        schema,
        node: Some(schema.kinds[0].node),
        manager: "m",
        api_version: "g/v1",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        reset: None,
        versions: None,
        force: true,
    };
    let object =
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": spec});
    match apply(&ctx, None, &object) {
        Ok(object) => Ok(object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].clone()),
        Err(ApplyError::Typed { mut errors, .. }) => {
            // Upstream iterates over maps in random order.
            errors.sort_unstable();
            Err(super::errors_text(&errors))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Sorts the lines of a message.
fn sorted(message: &str) -> String {
    let Some(errors) = message.strip_prefix("errors:\n  ") else { return message.to_owned() };
    let mut errors: Vec<String> = errors.split("\n  ").map(str::to_owned).collect();
    errors.sort_unstable();
    super::errors_text(&errors)
}

#[test]
fn applies_custom_values_like_upstream() {
    let (gvk, mut wrong) = (GroupVersionKind::new("g", "v1", "K"), Vec::new());
    for line in include_str!("../../../api-schema/tests/it/custom.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let spec = json!({"type": "object", "properties": {"f": line["schema"]}});
        let open_api = json!({"type": "object", "properties": {"spec": spec}});
        let schema = Schema::from_crd(&open_api, &gvk, &Path::new("s")).unwrap();
        for row in line["rows"].as_array().unwrap() {
            let (value, expected) = (&row[0], &row[3]);
            let spec = if value == "absent" { json!({}) } else { json!({"f": value}) };
            let fields = &expected["fields"];
            match (apply_spec(&schema, spec), expected) {
                // Validation runs later.
                (Ok(_), Value::Object(causes)) if causes.contains_key("causes") => {}
                (Ok(_), Value::String(causes)) if causes == "causes" => {}
                (Ok(given), Value::Object(_)) if given["f:f"] == *fields => {}
                (Err(error), Value::String(message)) if error == sorted(message) => {}
                (given, _) => {
                    wrong.push(format!("{} {value}\n  {given:?}\n  not {expected}", line["schema"]))
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
