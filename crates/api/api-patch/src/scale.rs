//! Converts the owners of a workload's replicas to the owners of its Scale, and back.
//!
//! The fields of a Scale have other paths than those of the workload. A write of a Scale finds its conflicts in, and
//! takes replicas from, the converted owners.

use serde_json::{Value, json};

use crate::{
    fieldset::{FieldSet, field},
    managed::{self, Entry},
};

/// The path of the replicas in a Scale.
const REPLICAS: &str = "spec.replicas";

/// Returns the owners of the replicas as `managedFields` of a Scale. `path` is the path of the workload's replicas,
/// with a dot before each name.
pub fn owners_in_scale(parent: &Value, path: &str) -> Value {
    let mut entries = managed::decode(parent.clone(), true).unwrap_or_default();
    entries.retain(|entry| owns(entry, path));
    for entry in &mut entries {
        entry.fields = FieldSet::of(&[REPLICAS]);
    }
    managed::encode(entries)
}

/// Returns the `managedFields` of a workload after a write of its Scale. Managers that are not in the Scale any more
/// lose the replicas. `api_version` is that of the workload in the request.
pub fn owners_in_parent(parent: Value, scale: Value, path: &str, api_version: &str) -> Value {
    let mut entries = managed::decode(parent, true).unwrap_or_default();
    let mut owners = managed::decode(scale, true).unwrap_or_default();
    owners.retain(|owner| owns(owner, ".spec.replicas"));
    let mut replicas = FieldSet::default();
    replicas.insert(elements(path));
    for entry in &mut entries {
        if owns(entry, path) && !owners.iter().any(|owner| owner.is(entry)) {
            entry.fields.difference(&replicas);
        }
    }
    for mut owner in owners {
        if !entries.iter().any(|entry| owner.is(entry) && owns(entry, path)) {
            entries.retain(|entry| !owner.is(entry));
            owner.fields = replicas.clone();
            owner.api_version = api_version.to_owned();
            // As upstream, which records no time for the owners of a Scale.
            owner.time = None;
            entries.push(owner);
        }
    }
    match managed::encode(entries) {
        // An empty list would mean that the owners are unknown.
        Value::Array(list) if list.is_empty() => json!([{}]),
        list => list,
    }
}

fn owns(entry: &Entry, path: &str) -> bool {
    let elements: Vec<String> = elements(path).collect();
    entry.fields.contains(&elements.iter().map(String::as_str).collect::<Vec<_>>())
}

fn elements(path: &str) -> impl Iterator<Item = String> {
    path.split('.').skip(1).map(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "apps/v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn converts_owners_of_replicas_and_back() {
        let both = json!({"f:spec": {"f:paused": {}, "f:size": {}}});
        let parent = json!([
            entry("a", "Apply", &both),
            entry("b", "Update", &json!({"f:spec": {"f:size": {}}})),
            entry("c", "Update", &json!({"f:spec": {"f:paused": {}}}))
        ]);
        let scale = owners_in_scale(&parent, ".spec.size");
        let replicas = json!({"f:spec": {"f:replicas": {}}});
        assert_eq!(scale, json!([entry("a", "Apply", &replicas), entry("b", "Update", &replicas)]));
        // Another manager has taken over the replicas.
        let mut taken = entry("d", "Apply", &replicas);
        taken["apiVersion"] = json!("autoscaling/v1");
        taken["subresource"] = json!("scale");
        let merged = owners_in_parent(parent, json!([taken]), ".spec.size", "apps/v1");
        let mut owner = entry("d", "Apply", &json!({"f:spec": {"f:size": {}}}));
        owner["subresource"] = json!("scale");
        owner.as_object_mut().unwrap().remove("time");
        assert_eq!(
            merged,
            json!([
                owner,
                entry("a", "Apply", &json!({"f:spec": {"f:paused": {}}})),
                entry("c", "Update", &json!({"f:spec": {"f:paused": {}}}))
            ])
        );
    }
}
