//! HorizontalPodAutoscalers.

use api_meta::{FieldError, Path};
use serde_json::json;

use crate::{
    look::{Look, default, put, slot},
    strategy::Strategy,
};

pub(crate) static AUTOSCALER: Strategy = Strategy {
    status: Some(|| json!({"currentMetrics": null, "desiredReplicas": 0})),
    own_defaults: |object| {
        let version_one = object.text("apiVersion") == "autoscaling/v1";
        let Some(spec) = slot(object, "spec") else { return };
        default(spec, "minReplicas", 1);
        if !version_one && spec.blank("metrics") {
            put(
                spec,
                "metrics",
                json!([{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
        if let Some(behavior) = slot(spec, "behavior").filter(|b| b.is_object()) {
            let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
            let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
            default(behavior, "scaleUp.stabilizationWindowSeconds", 0);
            default(behavior, "scaleUp.selectPolicy", "Max");
            default(behavior, "scaleUp.policies", json!([pods, percent]));
            default(behavior, "scaleDown.selectPolicy", "Max");
            default(behavior, "scaleDown.policies", json!([percent]));
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
        for field in ["kind", "name"] {
            if spec.at("scaleTargetRef").blank(field) {
                let path = path.child("scaleTargetRef").child(field);
                errors.push(FieldError::required(&path, ""));
            }
        }
    },
    ..Strategy::PLAIN
};
