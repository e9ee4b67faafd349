//! Rules of HorizontalPodAutoscalers.

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::{Value, json};

use super::status;
use crate::{
    fields::{
        FieldRule,
        Rule::{IsOneOf, IsWithin, Named, OneOf, Required, Text, TextIfAny, Within},
    },
    strategy::Strategy,
};

pub(crate) static AUTOSCALER: Strategy = Strategy {
    status: Some(|| json!({"currentMetrics": null, "desiredReplicas": 0})),
    own_defaults: |object| {
        let version_one = object.text("apiVersion") == "autoscaling/v1";
        if !version_one {
            // v2 has fields for the contents of these annotations. Drop a client's annotations, because v1 would read
            // them.
            for name in ROUND_TRIP {
                object.remove(&["metadata", "annotations", name]);
            }
        }
        let Some(spec) = object.at_mut("spec") else { return };
        spec.set_default("minReplicas", 1);
        if !version_one && spec.blank("metrics") {
            spec.set(
                "metrics",
                json!([{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
        if let Some(behavior) = spec.at_mut("behavior").filter(|b| b.is_object()) {
            let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
            let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
            behavior.set_default("scaleUp.stabilizationWindowSeconds", 0);
            behavior.set_default("scaleUp.selectPolicy", "Max");
            behavior.set_default("scaleUp.policies", json!([pods, percent]));
            behavior.set_default("scaleDown.selectPolicy", "Max");
            behavior.set_default("scaleDown.policies", json!([percent]));
        }
    },
    check: |object, errors| {
        let (spec, path) = (object.at("spec"), Path::new("spec"));
        let (min, max) = (spec.opt_int("minReplicas").unwrap_or(1), spec.int("maxReplicas"));
        if min < 1 {
            let detail = "must be greater than or equal to 1";
            errors.push(FieldError::invalid(&path.child("minReplicas"), min, detail));
        }
        if max < 1 {
            let detail = "must be greater than 0";
            errors.push(FieldError::invalid(&path.child("maxReplicas"), max, detail));
        }
        if max < min {
            let detail = "must be greater than or equal to `minReplicas`";
            errors.push(FieldError::invalid(&path.child("maxReplicas"), max, detail));
        }
        check_version(spec.at("scaleTargetRef"), &path.child("scaleTargetRef"), errors);
        for (direction, path) in
            ["scaleUp", "scaleDown"].map(|d| (d, path.child("behavior").child(d)))
        {
            let rules = spec.at("behavior").at(direction);
            let tolerance = rules.text("tolerance");
            if Quantity::parse(tolerance).is_ok_and(|tolerance| tolerance.is_negative()) {
                let detail = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(&path.child("tolerance"), tolerance, detail));
            }
            if rules.is_object() && rules.blank("policies") {
                errors.push(FieldError::required(&path.child("policies"), NO_POLICY));
            }
        }
        for (i, metric) in spec.items("metrics").iter().enumerate() {
            check_metric(metric, &path.child("metrics").index(i), errors);
        }
    },
    fields: FIELDS,
    check_status: |new, _, _, errors| status::check_autoscaler(new, errors),
    ..Strategy::PLAIN
};

/// The annotations in which v1 stores fields that only v2 has.
const ROUND_TRIP: [&str; 4] = [
    "autoscaling.alpha.kubernetes.io/behavior",
    "autoscaling.alpha.kubernetes.io/conditions",
    "autoscaling.alpha.kubernetes.io/current-metrics",
    "autoscaling.alpha.kubernetes.io/metrics",
];

const MAX: i64 = i32::MAX as i64;
const NO_TYPE: &str = "must specify a metric source type";
const NO_METRIC: &str = "must specify a metric name";

const FIELDS: &[FieldRule] = &[
    ("spec.scaleTargetRef.kind", Named(validation::path_segment_name)),
    ("spec.scaleTargetRef.name", Named(validation::path_segment_name)),
    ("spec.metrics[].type", Required(NO_TYPE)),
    ("spec.metrics[].type", IsOneOf(&SOURCES)),
    ("spec.metrics[].resource.name", Required("must specify a resource name")),
    ("spec.metrics[].containerResource.name", Required("must specify a resource name")),
    ("spec.metrics[].containerResource.container", Required("must specify a container")),
    ("spec.metrics[].containerResource.container", TextIfAny(validation::dns1123_label)),
    ("spec.metrics[].pods.metric.name", Text(validation::path_segment_name)),
    ("spec.metrics[].object.metric.name", Text(validation::path_segment_name)),
    ("spec.metrics[].external.metric.name", Text(validation::path_segment_name)),
    ("spec.metrics[].pods.metric.name", Required(NO_METRIC)),
    ("spec.metrics[].object.metric.name", Required(NO_METRIC)),
    ("spec.metrics[].object.describedObject.kind", Named(validation::path_segment_name)),
    ("spec.metrics[].object.describedObject.name", Named(validation::path_segment_name)),
    ("spec.metrics[].external.metric.name", Required(NO_METRIC)),
    ("spec.behavior.scaleUp.selectPolicy", OneOf(&POLICIES)),
    ("spec.behavior.scaleDown.selectPolicy", OneOf(&POLICIES)),
    (
        "spec.behavior.scaleUp.stabilizationWindowSeconds",
        Within(0, MAX, "must be greater than or equal to zero"),
    ),
    (
        "spec.behavior.scaleUp.stabilizationWindowSeconds",
        Within(-MAX, 3600, "must be less than or equal to 3600"),
    ),
    (
        "spec.behavior.scaleDown.stabilizationWindowSeconds",
        Within(0, MAX, "must be greater than or equal to zero"),
    ),
    (
        "spec.behavior.scaleDown.stabilizationWindowSeconds",
        Within(-MAX, 3600, "must be less than or equal to 3600"),
    ),
    ("spec.behavior.scaleUp.policies[].type", IsOneOf(&["Percent", "Pods"])),
    ("spec.behavior.scaleUp.policies[].value", IsWithin(1, MAX, "must be greater than zero")),
    (
        "spec.behavior.scaleUp.policies[].periodSeconds",
        IsWithin(1, MAX, "must be greater than zero"),
    ),
    (
        "spec.behavior.scaleUp.policies[].periodSeconds",
        Within(-MAX, 1800, "must be less than or equal to 1800"),
    ),
    ("spec.behavior.scaleDown.policies[].type", IsOneOf(&["Percent", "Pods"])),
    ("spec.behavior.scaleDown.policies[].value", IsWithin(1, MAX, "must be greater than zero")),
    (
        "spec.behavior.scaleDown.policies[].periodSeconds",
        IsWithin(1, MAX, "must be greater than zero"),
    ),
    (
        "spec.behavior.scaleDown.policies[].periodSeconds",
        Within(-MAX, 1800, "must be less than or equal to 1800"),
    ),
];

const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const POLICIES: [&str; 3] = ["Disabled", "Max", "Min"];
const NO_POLICY: &str = "must specify at least one Policy";

/// Validates the API version of a scale target. In the core group only ReplicationControllers can be scaled.
fn check_version(target: &Value, path: &Path, errors: &mut ErrorList) {
    let version = target.text("apiVersion");
    let detail = match version.matches('/').count() {
        0 if target.text("kind") == "ReplicationController" => return,
        0 => "apiVersion must specify API group".to_owned(),
        1 => return,
        _ => format!("unexpected GroupVersion string: {version}"),
    };
    errors.push(FieldError::invalid(&path.child("apiVersion"), version, detail));
}

/// Validates a metric: exactly the source that its type names, with a valid target.
fn check_metric(metric: &Value, path: &Path, errors: &mut ErrorList) {
    let members =
        ["containerResource", "external", "object", "pods", "resource"].into_iter().zip(SOURCES);
    for (member, kind) in members {
        let named = metric.text("type") == kind;
        let path = path.child(member);
        match metric.at(member) {
            Value::Null if named => errors.push(FieldError::required(
                &path,
                "must populate information for the given metric source",
            )),
            Value::Null => {}
            source if named => {
                check_target(kind, source.at("target"), &path.child("target"), errors)
            }
            _ if metric.blank("type") => {}
            _ => errors
                .push(FieldError::forbidden(&path, "must populate the given metric source only")),
        }
    }
}

fn check_target(kind: &str, target: &Value, path: &Path, errors: &mut ErrorList) {
    let type_path = path.child("type");
    if target.blank("type") {
        errors.push(FieldError::required(&type_path, "must specify a metric target type"));
    }
    if !matches!(target.text("type"), "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&type_path, target.text("type"), detail));
    }
    let positive = |field: &str| {
        Quantity::parse(target.text(field)).is_ok_and(|q| !q.is_zero() && !q.is_negative())
    };
    for field in ["value", "averageValue"] {
        if target.has(field) && !positive(field) {
            let found = target.at(field).clone();
            errors.push(FieldError::invalid(&path.child(field), found, "must be positive"));
        }
    }
    if let Some(share) = target.opt_int("averageUtilization")
        && share < 1
    {
        let path = path.child("averageUtilization");
        errors.push(FieldError::invalid(&path, share, "must be greater than 0"));
    }
    let (value, average) = (target.has("value"), target.has("averageValue"));
    let share = target.has("averageUtilization");
    let error = match kind {
        "Pods" if !positive("averageValue") => {
            Some(("averageValue", "must specify a positive target averageValue"))
        }
        "Object" if !value && !average => {
            Some(("averageValue", "must set either a target value or averageValue"))
        }
        "External" if !value && !average => {
            Some(("averageValue", "must set either a target value for metric or a per-pod target"))
        }
        "Resource" | "ContainerResource" if !share && !average => Some((
            "averageUtilization",
            "must set either a target raw value or a target utilization",
        )),
        _ => None,
    };
    if let Some((field, detail)) = error {
        errors.push(FieldError::required(&path.child(field), detail));
    }
    let error = match kind {
        "External" if value && average => {
            Some(("value", "may not set both a target value for metric and a per-pod target"))
        }
        "Resource" | "ContainerResource" if share && average => {
            Some(("averageValue", "may not set both a target raw value and a target utilization"))
        }
        _ => None,
    };
    if let Some((field, detail)) = error {
        errors.push(FieldError::forbidden(&path.child(field), detail));
    }
}
