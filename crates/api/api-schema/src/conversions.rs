//! Conversions between the versions of built-in kinds. The storage version is the newest one, except for Events, which
//! are stored in the core group.

mod autoscaler;
mod conversion;
mod devices;

use api_meta::Tree as _;
use serde_json::Value;

pub use conversion::Conversion;

/// Returns the conversion of a built-in kind's version. `None` if objects are stored in this version, or if the
/// versions do not differ.
pub fn conversion(group: &str, version: &str, plural: &str) -> Option<Conversion> {
    match (group, version, plural) {
        ("events.k8s.io", "v1", "events") => Some(Conversion {
            to_storage: event_to_core,
            from_storage: event_from_core,
            stored_rules: false,
        }),
        ("autoscaling", "v1", "horizontalpodautoscalers") => Some(Conversion {
            to_storage: autoscaler::to_v2,
            from_storage: autoscaler::from_v2,
            stored_rules: true,
        }),
        ("resource.k8s.io", "v1beta1", plural) => devices::between(plural),
        _ => None,
    }
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
    use serde_json::json;

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
            let found = conversion(group, "v1", plural).unwrap();
            let mut tree = object.clone();
            (found.to_storage)(&mut tree);
            assert_ne!(tree, object);
            (found.from_storage)(&mut tree);
            assert_eq!(tree, object);
        }
    }

    #[test]
    fn preserves_v2_fields_through_v1() {
        let found = conversion("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}],
            "behavior": {"scaleUp": {"policies": []}}}, "status": {}});
        let mut tree = object.clone();
        (found.from_storage)(&mut tree);
        assert!(tree["spec"].get("metrics").is_none());
        (found.to_storage)(&mut tree);
        assert_eq!(tree, object);
    }
}
