//! Rules of Workloads and PodGroups.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::{Value, json};

use crate::{
    conditions::validate_conditions,
    fields::{
        FieldRule,
        Rule::{Named, Required, TextIfAny, UniqueBy},
    },
    meta::check_immutable,
    strategy::Strategy,
};

/// The maximum number of templates of a Workload.
const MAX_TEMPLATES: usize = 8;
/// The fields of groups and templates whose feature gates cannot be on.
const LACKING: [&str; 5] =
    ["disruptionMode", "priority", "priorityClassName", "resourceClaims", "schedulingConstraints"];

pub(crate) static WORKLOAD: Strategy = Strategy {
    own_create: |workload, _| {
        workload.items_mut("spec.podGroupTemplates").for_each(drop_lacking_fields);
    },
    check: |workload, errors| {
        let path = Path::new("spec").child("podGroupTemplates");
        let templates = workload.items("spec.podGroupTemplates");
        if templates.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if templates.len() > MAX_TEMPLATES {
            errors.push(FieldError::too_many(&path, templates.len(), MAX_TEMPLATES));
        }
        for (i, template) in templates.iter().enumerate() {
            check_policy(template, &path.index(i), errors);
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    fields: &[
        ("spec.controllerRef.apiGroup", TextIfAny(validation::dns1123_subdomain)),
        ("spec.controllerRef.kind", Named(validation::path_segment_name)),
        ("spec.controllerRef.name", Named(validation::path_segment_name)),
        ("spec.podGroupTemplates", UniqueBy("name")),
        ("spec.podGroupTemplates[].name", Named(validation::dns1123_label)),
    ],
    ..Strategy::PLAIN
};

pub(crate) static POD_GROUP: Strategy = Strategy {
    status: Some(|| json!({})),
    own_create: |group, _| {
        if let Some(spec) = group.at_mut(&["spec"]) {
            drop_lacking_fields(spec);
            spec.set("disruptionMode", "Pod");
        }
    },
    check: |group, errors| {
        let (spec, path) = (group.at("spec"), Path::new("spec"));
        check_policy(spec, &path, errors);
        if spec.has("podGroupTemplateRef") {
            let path = path.child("podGroupTemplateRef");
            crate::fields::check(spec.at("podGroupTemplateRef"), TEMPLATE, &path, errors);
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    check_status: |new, _, _, errors| {
        let path = Path::new("status").child("conditions");
        validate_conditions(new.items("status.conditions"), &path, errors);
    },
    ..Strategy::PLAIN
};

const TEMPLATE: &[FieldRule] = &[
    ("workload", Required("")),
    ("workload.workloadName", Named(validation::dns1123_subdomain)),
    ("workload.podGroupTemplateName", Named(validation::dns1123_label)),
];

fn drop_lacking_fields(group: &mut Value) {
    for field in LACKING {
        group.remove(field);
    }
}

/// Validates the scheduling policy of a group or a template: exactly one of `basic` and `gang`.
fn check_policy(group: &Value, path: &Path, errors: &mut ErrorList) {
    let (policy, path) = (group.at("schedulingPolicy"), path.child("schedulingPolicy"));
    match (policy.has("basic"), policy.has("gang")) {
        (false, false) => {
            let detail = "must specify one of: `basic`, `gang`";
            errors.push(FieldError::invalid(&path, "", detail));
        }
        (true, true) => {
            let detail = "must specify exactly one of: `basic`, `gang`";
            errors.push(FieldError::invalid(&path, "{`basic`, `gang`}", detail));
        }
        _ => {}
    }
    if !policy.has("gang") {
        return;
    }
    let path = path.child("gang").child("minCount");
    match policy.int("gang.minCount") {
        0 => errors.push(FieldError::required(&path, "")),
        1.. => {}
        count => {
            let detail = "must be greater than or equal to 1";
            errors.push(FieldError::invalid(&path, count, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::{errors, made, updated};

    const GROUP: &str = "scheduling.k8s.io";
    /// The text of an empty list of errors.
    const VALID: &str = "[]";

    fn gang(count: i64) -> Value {
        json!({"gang": {"minCount": count}})
    }

    fn group(spec: Value) -> String {
        errors(GROUP, "podgroups", json!({ "spec": spec }))
    }

    fn workload(spec: Value) -> String {
        errors(GROUP, "workloads", json!({ "spec": spec }))
    }

    #[test]
    fn validates_policy_and_template_of_group() {
        let reference = |workload: Value| json!({"schedulingPolicy": {"basic": {}}, "podGroupTemplateRef": workload});
        let named = json!({"workload": {"workloadName": "a.b", "podGroupTemplateName": "c"}});
        for valid in [
            json!({"schedulingPolicy": {"basic": {}}}),
            json!({"schedulingPolicy": gang(1)}),
            reference(named),
        ] {
            assert_eq!(group(valid.clone()), VALID, "{valid}");
        }
        for (spec, expected) in [
            (
                json!({}),
                "spec.schedulingPolicy: Invalid value: \"\": must specify one of: `basic`, `gang`",
            ),
            (
                json!({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 2}}}),
                "spec.schedulingPolicy: Invalid value: \"{`basic`, `gang`}\": must specify exactly one of: `basic`, `gang`",
            ),
            (
                json!({"schedulingPolicy": gang(0)}),
                "spec.schedulingPolicy.gang.minCount: Required value",
            ),
            (
                json!({"schedulingPolicy": gang(-2)}),
                "spec.schedulingPolicy.gang.minCount: Invalid value: -2: must be greater than or equal to 1",
            ),
            (reference(json!({})), "spec.podGroupTemplateRef.workload: Required value"),
            (
                reference(json!({"workload": {"workloadName": "w"}})),
                "spec.podGroupTemplateRef.workload.podGroupTemplateName: Required value",
            ),
        ] {
            assert_eq!(group(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn validates_templates_of_workload() {
        let template = |name: String| json!({"name": name, "schedulingPolicy": {"basic": {}}});
        let templates = |count: usize| -> Vec<Value> {
            (0..count).map(|number| template(format!("t{number}"))).collect()
        };
        assert_eq!(workload(json!({"podGroupTemplates": templates(8)})), VALID);
        assert_eq!(workload(json!({})), "spec.podGroupTemplates: Required value");
        let many = workload(json!({"podGroupTemplates": templates(2000)}));
        assert_eq!(many, "spec.podGroupTemplates: Too many: 2000: must have at most 8 items");
        let twice = [template("a".into()), template("a".into())];
        assert!(workload(json!({ "podGroupTemplates": twice })).contains("Duplicate value"));
        let wrong = workload(json!({"podGroupTemplates": [template("A".into())],
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "a/b"}}));
        assert!(wrong.contains("spec.podGroupTemplates[0].name: Invalid value: \"A\""), "{wrong}");
        assert!(wrong.contains("spec.controllerRef.name: Invalid value: \"a/b\""), "{wrong}");
    }

    #[test]
    fn drops_fields_of_missing_features_and_keeps_spec() {
        let spec = json!({"schedulingPolicy": gang(2), "priority": 7, "priorityClassName": "p",
            "disruptionMode": "PodGroup", "schedulingConstraints": {"topology": [{"key": "rack"}]},
            "resourceClaims": [{"name": "c", "resourceClaimName": "d"}]});
        let made = made(GROUP, "podgroups", json!({ "spec": spec }));
        assert_eq!(made["spec"], json!({"schedulingPolicy": gang(2), "disruptionMode": "Pod"}));
        let (_, errors) = updated(&POD_GROUP, &made, |group| {
            group["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(3);
        });
        assert!(errors.contains("field is immutable"), "{errors}");
    }
}
