//! References to the schemas of a document.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Returns the names of all components that a value refers to.
pub(super) fn references(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(members) => {
                if let Some(name) =
                    members.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next())
                {
                    found.insert(name.to_owned());
                }
                rest.extend(members.values());
            }
            Value::Array(items) => rest.extend(items),
            _ => {}
        }
    }
    found
}

/// Returns a reference to a component.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}
