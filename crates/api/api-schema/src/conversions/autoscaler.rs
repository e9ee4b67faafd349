//! Converts HorizontalPodAutoscalers between autoscaling/v1 and v2, the storage version.
//!
//! v1 keeps fields that only v2 has in annotations, in upstream's format: metrics as v1's types, the behavior with Go's
//! names. Annotations are decoded with v2's schema within a budget. As upstream, an annotation that does not decode is
//! dropped.

use api_meta::{Budget, Tree as _};
use serde_json::{Value, json};

use crate::{decode::decode_value, fill::Fill, schema::Schema};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// The fields of each metric source in v1, and their paths in v2. In a status, `target` is `current` in both.
const SOURCES: [(&str, &[(&str, &str)]); 5] = [
    (
        "resource",
        &[
            ("name", "name"),
            ("targetAverageUtilization", "target.averageUtilization"),
            ("targetAverageValue", "target.averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "name"),
            ("container", "container"),
            ("targetAverageUtilization", "target.averageUtilization"),
            ("targetAverageValue", "target.averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "metric.name"),
            ("selector", "metric.selector"),
            ("targetAverageValue", "target.averageValue"),
        ],
    ),
    (
        "object",
        &[
            ("target", "describedObject"),
            ("metricName", "metric.name"),
            ("selector", "metric.selector"),
            ("targetValue", "target.value"),
            ("averageValue", "target.averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "metric.name"),
            ("metricSelector", "metric.selector"),
            ("targetValue", "target.value"),
            ("targetAverageValue", "target.averageValue"),
        ],
    ),
];

/// The part of an autoscaler that a metric belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Spec,
    Status,
}

impl Part {
    /// Returns the names of a field of v1 and its path in v2 for this part.
    fn names(self, old: &str, new: &str) -> (String, String) {
        match self {
            Self::Status if old != "target" => {
                (old.replacen("target", "current", 1), new.replacen("target", "current", 1))
            }
            _ => (old.to_owned(), new.to_owned()),
        }
    }
}

pub(super) fn to_v2(tree: &mut Value) {
    let metrics = take(tree, METRICS, &["spec", "metrics"], |v| metrics_to_v2(v, Part::Spec));
    let mut metrics = list(metrics);
    if let Some(target) = tree.remove("spec.targetCPUUtilizationPercentage") {
        let target = json!({"type": "Utilization", "averageUtilization": target});
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        metrics.insert(0, cpu);
    }
    if !metrics.is_empty() {
        tree.put(&["spec", "metrics"], json!(metrics));
    }
    if let Some(behavior) =
        take(tree, BEHAVIOR, &["spec", "behavior"], |v| rename_members(v, lower))
    {
        tree.put(&["spec", "behavior"], behavior);
    }
    let current = ["status", "currentMetrics"];
    let mut metrics =
        list(take(tree, CURRENT_METRICS, &current, |v| metrics_to_v2(v, Part::Status)));
    let utilization = tree.remove("status.currentCPUUtilizationPercentage");
    // The annotation is more complete than the percentage.
    if let Some(utilization) = utilization.filter(|_| metrics.is_empty()) {
        let current = json!({"averageUtilization": utilization});
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "current": current}});
        metrics.push(cpu);
    }
    if !metrics.is_empty() {
        tree.put(&current, json!(metrics));
    }
    if let Some(conditions) = take(tree, CONDITIONS, &["status", "conditions"], |v| v) {
        tree.put(&["status", "conditions"], conditions);
    }
    if tree.blank("metadata.annotations") {
        tree.remove("metadata.annotations");
    }
    // Only v1 writes a zero.
    if tree.at("status.currentReplicas") == 0 {
        tree.remove("status.currentReplicas");
    }
}

pub(super) fn from_v2(tree: &mut Value) {
    let has_cpu = |metric: &Value, way: &str| {
        metric.text("resource.name") == "cpu" && metric.at(way).is_number()
    };
    let mut metrics = list(tree.remove("spec.metrics"));
    let target = "resource.target.averageUtilization";
    if let Some(i) = metrics.iter().position(|metric| has_cpu(metric, target)) {
        let target = metrics.remove(i).take_at(target);
        tree.put(&["spec", "targetCPUUtilizationPercentage"], target);
    }
    annotate(tree, METRICS, metrics_to_v1(metrics, Part::Spec));
    if let Some(behavior) = tree.remove("spec.behavior") {
        annotate(tree, BEHAVIOR, rename_members(behavior, upper));
    }
    let metrics = list(tree.remove("status.currentMetrics"));
    let current = "resource.current.averageUtilization";
    if let Some(metric) = metrics.iter().find(|metric| has_cpu(metric, current)) {
        let current = metric.at(current).clone();
        tree.put(&["status", "currentCPUUtilizationPercentage"], current);
    }
    annotate(tree, CURRENT_METRICS, metrics_to_v1(metrics, Part::Status));
    if let Some(conditions) = tree.remove("status.conditions") {
        annotate(tree, CONDITIONS, conditions);
    }
    if let Some(status) = tree.get_mut("status").and_then(Value::as_object_mut) {
        status.entry("currentReplicas").or_insert(json!(0));
    }
}

/// Takes an annotation and decodes it as the field of v2 that it stands for.
fn take(
    tree: &mut Value,
    name: &str,
    field: &[&str; 2],
    to_v2: impl FnOnce(Value) -> Value,
) -> Option<Value> {
    let text = tree.remove(&["metadata", "annotations", name])?;
    let value = Budget::object().json(text.as_str()?.as_bytes()).ok()?;
    // Decoded at its place in the object, like in a body.
    let mut whole = json!({});
    whole.put(field, to_v2(value));
    let schema = Schema::builtin();
    let node = schema.kind("autoscaling", "v2", "HorizontalPodAutoscaler")?;
    let mut decoded = decode_value(schema, node, whole, Fill::Given).ok()?.value;
    Some(decoded.take_at(field)).filter(|value| !value.blank(""))
}

fn annotate(tree: &mut Value, name: &str, value: Value) {
    if !value.blank("") {
        tree.put(&["metadata", "annotations", name], json!(value.to_string()));
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Converts the metrics of an annotation. A value that is not a list is kept, and fails to decode.
fn metrics_to_v2(mut metrics: Value, part: Part) -> Value {
    for metric in metrics.items_mut("") {
        for (member, fields) in SOURCES {
            let Some(source) = metric.at_mut(member).filter(|source| source.is_object()) else {
                continue;
            };
            let old = source.take();
            *source = json!({});
            for (one, two) in fields {
                let (one, two) = part.names(one, two);
                source.set(&two, old.at(&one).clone());
            }
            drop_zero(source, member, part);
            if part == Part::Spec {
                source.put("target.type", target_type(source));
            }
        }
    }
    metrics
}

/// v1 writes `0` for the value of an object that is measured by its average.
fn drop_zero(source: &mut Value, member: &str, part: Part) {
    let target = if part == Part::Spec { "target" } else { "current" };
    let zero = source.at(&[target, "value"]) == "0";
    if member == "object" && zero && source.has(&[target, "averageValue"]) {
        source.remove(&[target, "value"]);
    }
}

/// Returns the type of a target, which v1 does not write.
fn target_type(source: &Value) -> &'static str {
    if source.has("target.averageUtilization") {
        "Utilization"
    } else if source.has("target.value") {
        "Value"
    } else {
        "AverageValue"
    }
}

fn metrics_to_v1(metrics: Vec<Value>, part: Part) -> Value {
    let convert = |metric: Value| {
        let mut out = json!({"type": metric.text("type")});
        for (member, fields) in SOURCES {
            let source = metric.at(member);
            if !source.is_object() {
                continue;
            }
            let mut old = json!({});
            for (one, two) in fields {
                let (one, two) = part.names(one, two);
                old.set(&one, source.at(&two).clone());
            }
            if member == "object" {
                let value = if part == Part::Spec { "targetValue" } else { "currentValue" };
                old.set_default(value, "0");
            }
            out.put(member, old);
        }
        out
    };
    metrics.into_iter().map(convert).collect()
}

/// Renames all members of a behavior, which has no maps whose keys are data.
fn rename_members(value: Value, rename: fn(char) -> char) -> Value {
    let name = |name: String| -> String {
        let mut rest = name.chars();
        let first = rest.next().map(rename);
        first.into_iter().chain(rest).collect()
    };
    match value {
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| (name(key), rename_members(value, rename)))
            .collect(),
        Value::Array(items) => items.into_iter().map(|item| rename_members(item, rename)).collect(),
        other => other,
    }
}

fn lower(letter: char) -> char {
    letter.to_ascii_lowercase()
}

fn upper(letter: char) -> char {
    letter.to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Value {
        json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3}})
    }

    fn scaler(annotations: Value) -> Value {
        let mut tree = plain();
        tree.put("metadata.annotations", annotations);
        tree
    }

    #[test]
    fn drops_annotation_that_does_not_decode_as_v2() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let cases = [
            (BEHAVIOR, "7"),
            (BEHAVIOR, "{\"scaleUp\": {\"policies\": 3}}"),
            (BEHAVIOR, "not JSON"),
            (BEHAVIOR, "null"),
            (METRICS, "{\"type\": \"Resource\"}"),
            (METRICS, "[7]"),
            (
                METRICS,
                "[{\"type\": \"Resource\", \"resource\": {\"targetAverageUtilization\": \"x\"}}]",
            ),
            (METRICS, &deep),
            (CURRENT_METRICS, "\"x\""),
            (CURRENT_METRICS, "[{\"type\": []}]"),
            (CONDITIONS, "[{\"type\": 1}]"),
            (CONDITIONS, "{}"),
            (CONDITIONS, "{\"type\": []}"),
            (METRICS, "{\"a\": []}"),
            (BEHAVIOR, "[7]"),
        ];
        for (name, text) in cases {
            let mut tree = scaler(json!({ name: text }));
            to_v2(&mut tree);
            assert_eq!(tree, plain(), "{name}: {text}");
        }
        let mut tree = scaler(json!({CONDITIONS: 7}));
        to_v2(&mut tree);
        assert_eq!(tree, plain());
    }

    #[test]
    fn drops_members_that_v2_does_not_know() {
        let behavior = "{\"ScaleDown\": {\"SelectPolicy\": \"Min\", \"Sudden\": 1}, \"x\": []}";
        let mut tree = scaler(json!({BEHAVIOR: behavior}));
        to_v2(&mut tree);
        assert_eq!(tree["spec"]["behavior"], json!({"scaleDown": {"selectPolicy": "Min"}}));
    }

    #[test]
    fn writes_annotations_in_upstreams_form() {
        let target = json!({"kind": "Ingress", "name": "i", "apiVersion": "networking.k8s.io/v1"});
        let selector = json!({"matchLabels": {"a": "b"}});
        let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
            "metrics": [
                {"type": "Resource", "resource": {"name": "memory",
                    "target": {"type": "Utilization", "averageUtilization": 60}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "Pods", "pods": {"metric": {"name": "p", "selector": selector},
                    "target": {"type": "AverageValue", "averageValue": "5"}}},
                {"type": "Object", "object": {"describedObject": target, "metric": {"name": "o"},
                    "target": {"type": "AverageValue", "averageValue": "7"}}},
                {"type": "External", "external": {"metric": {"name": "e"},
                    "target": {"type": "Value", "value": "9"}}},
            ],
            "behavior": {"scaleUp": {"selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}},
            "status": {"currentReplicas": 1, "currentMetrics": [{"type": "Resource",
                "resource": {"name": "cpu", "current": {"averageUtilization": 5, "averageValue": "50m"}}}]}});
        let mut tree = object.clone();
        from_v2(&mut tree);
        let annotation = |name: &str| -> Value {
            serde_json::from_str(tree["metadata"]["annotations"][name].as_str().unwrap()).unwrap()
        };
        assert_eq!(
            annotation(METRICS),
            json!([
                {"type": "Resource", "resource": {"name": "memory", "targetAverageUtilization": 60}},
                {"type": "ContainerResource",
                    "containerResource": {"name": "cpu", "container": "c", "targetAverageValue": "1"}},
                {"type": "Pods", "pods": {"metricName": "p", "selector": selector, "targetAverageValue": "5"}},
                {"type": "Object", "object": {"target": target, "metricName": "o", "targetValue": "0",
                    "averageValue": "7"}},
                {"type": "External", "external": {"metricName": "e", "targetValue": "9"}},
            ])
        );
        assert_eq!(
            annotation(BEHAVIOR),
            json!({"ScaleUp": {"SelectPolicy": "Max",
                "Policies": [{"Type": "Pods", "Value": 4, "PeriodSeconds": 15}]}})
        );
        assert_eq!(
            annotation(CURRENT_METRICS),
            json!([{"type": "Resource", "resource": {"name": "cpu", "currentAverageUtilization": 5,
                "currentAverageValue": "50m"}}])
        );
        to_v2(&mut tree);
        assert_eq!(tree, object);
    }
}
