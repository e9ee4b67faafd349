//! Conversions between the versions of built-in kinds, and of custom kinds without a webhook. The storage version is
//! the newest one, except for Events, which are stored in the core group.

use api_meta::Tree as _;
use std::sync::Arc;

use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use super::{
    autoscaler,
    definition::{Conversion, Convert, Definition, ServedVersion},
};

pub(crate) fn between(group: &str, version: &str, plural: &str) -> Option<Conversion> {
    let of = |to: fn(&mut Value), from: fn(&mut Value)| Conversion {
        to_storage: Arc::new(to),
        from_storage: Arc::new(from),
        stored_rules: false,
    };
    match (group, version, plural) {
        ("events.k8s.io", "v1", "events") => Some(of(event_to_core, event_from_core)),
        ("autoscaling", "v1", "horizontalpodautoscalers") => {
            Some(Conversion { stored_rules: true, ..of(autoscaler::to_v2, autoscaler::from_v2) })
        }
        _ => None,
    }
}

/// Converts between two versions of a custom kind without a webhook: each version keeps the fields of its schema.
pub(crate) fn by_schema(served: &ServedVersion, stored: &ServedVersion) -> Conversion {
    let fit = |served: &ServedVersion| -> Convert {
        let (schema, node) = (served.schema.clone(), served.node);
        Arc::new(move |tree| fit(&schema, node, tree))
    };
    Conversion { to_storage: fit(stored), from_storage: fit(served), stored_rules: false }
}

/// Conversion for field ownership. It calls no webhook: fields that a webhook would convert keep their names.
impl api_patch::Versions for Definition {
    fn types(&self, api_version: &str) -> Option<(&Schema, NodeId)> {
        // Upstream has no conversion between Events of the two groups, and drops the managers of the other group.
        let one_group = self.served.iter().all(|served| served.group == self.group);
        let version = self.version(api_version).filter(|_| one_group);
        version.map(|served| (&*served.schema, served.node))
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Value {
        let mut object = object.clone();
        let conversion =
            |version| self.version(version).and_then(|served| served.conversion.as_ref());
        if let Some(conversion) = conversion(from) {
            (conversion.to_storage)(&mut object);
        }
        if let Some(conversion) = conversion(to) {
            (conversion.from_storage)(&mut object);
        }
        if let Some(served) = self.version(to) {
            object.put(&["apiVersion"], json!(*served.api_version));
            object.put(&["kind"], json!(*served.kind));
        }
        object
    }
}

/// Drops unknown fields and applies defaults, so that objects stored with an earlier schema fit the current one.
pub(crate) fn fit(schema: &Schema, node: NodeId, tree: &mut Value) {
    if let Err(error) = api_schema::prune(schema, node, tree) {
        tracing::debug!(%error, "a stored object does not fit its schema");
    }
    if let Err(error) = api_schema::apply_defaults(schema, node, tree) {
        tracing::debug!(%error, "a stored object does not take all of its schema's defaults");
    }
}

/// Like [`fit`], for an object with kind and apiVersion, which its schema need not contain.
pub(crate) fn fit_whole(served: &ServedVersion, tree: &mut Value) {
    if let Some(map) = tree.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    fit(&served.schema, served.node, tree);
}

/// The field names in `events.k8s.io/v1` and in core/v1.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

fn rename(tree: &mut Value, from: &str, to: &str) {
    if let Some(map) = tree.as_object_mut()
        && let Some(value) = map.remove(from)
    {
        map.insert(to.to_owned(), value);
    }
}

fn event_to_core(tree: &mut Value) {
    for (new, core) in EVENT_FIELDS {
        rename(tree, new, core);
    }
}

fn event_from_core(tree: &mut Value) {
    for (new, core) in EVENT_FIELDS {
        rename(tree, core, new);
    }
    // Core stores empty values of these fields.
    for field in ["reportingController", "reportingInstance"] {
        if tree.text(field).is_empty() {
            tree.remove(&[field]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_to_storage_version_and_back() {
        let cases = [
            (
                "events.k8s.io",
                "events",
                json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod"}, "note": "n", "reportingController": "c", "deprecatedCount": 2}),
            ),
            (
                "autoscaling",
                "horizontalpodautoscalers",
                json!({"metadata": {"name": "h", "annotations": {"autoscaling.alpha.kubernetes.io/current-metrics":
                    "[{\"resource\":{\"currentAverageUtilization\":10,\"name\":\"cpu\"},\"type\":\"Resource\"}]"}},
                    "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
                    "status": {"currentCPUUtilizationPercentage": 10, "currentReplicas": 0}}),
            ),
        ];
        for (group, plural, object) in cases {
            let conversion = between(group, "v1", plural).unwrap();
            let mut tree = object.clone();
            (conversion.to_storage)(&mut tree);
            assert_ne!(tree, object);
            (conversion.from_storage)(&mut tree);
            assert_eq!(tree, object);
        }
    }

    #[test]
    fn preserves_v2_fields_through_v1() {
        let conversion = between("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}],
            "behavior": {"scaleUp": {"policies": []}}}, "status": {}});
        let mut tree = object.clone();
        (conversion.from_storage)(&mut tree);
        assert!(tree["spec"].get("metrics").is_none());
        (conversion.to_storage)(&mut tree);
        assert_eq!(tree, object);
    }
}
