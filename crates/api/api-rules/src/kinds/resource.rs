//! Rules of dynamic resource allocation: DeviceClasses, ResourceClaims, their templates, and ResourceSlices.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::{Value, json};

use crate::{
    conditions::validate_conditions,
    expressions::devices::check_selectors,
    fields::{
        FieldRule,
        Rule::{
            IsOneOf, IsText, IsWithin, Labels, Named, OneOf, Required, Text, TextIfAny, Unique,
            UniqueBy, Within,
        },
    },
    meta::check_immutable,
    pod::is_extended_resource,
    strategy::Strategy,
};

const MAX: i64 = i64::MAX;

pub(crate) static DEVICE_CLASS: Strategy = Strategy {
    generation: true,
    check: |class, errors| {
        check_selectors(class.at("spec"), &Path::new("spec"), errors);
        if let Some(name) = class.at("spec.extendedResourceName").as_str() {
            let is_valid = is_extended_resource(name)
                && validation::qualified_name(&format!("requests.{name}")).is_empty();
            if !is_valid {
                let path = Path::new("spec").child("extendedResourceName");
                let detail = "must be a valid extended resource name";
                errors.push(FieldError::invalid(&path, name, detail));
            }
        }
        let path = Path::new("spec").child("config");
        check_configurations(class.items("spec.config"), &path, errors);
    },
    ..Strategy::PLAIN
};

const CONFIGURATION: &[FieldRule] =
    &[("opaque", Required("")), ("opaque.driver", Named(driver_name))];

/// Validates the configurations of a class or claim.
fn check_configurations(configurations: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, configuration) in configurations.iter().enumerate() {
        let path = path.index(i);
        crate::fields::check(configuration, CONFIGURATION, &path, errors);
        let parameters = configuration.at("opaque.parameters");
        let path = path.child("opaque").child("parameters");
        if configuration.has("opaque") && parameters.is_null() {
            errors.push(FieldError::required(&path, ""));
        } else if configuration.has("opaque") && !parameters.is_object() {
            let detail = "must be a valid JSON object";
            errors.push(FieldError::invalid(&path, "<value omitted>", detail));
        }
    }
}

/// Validates the name of a driver. Capital letters are deprecated and valid.
fn driver_name(name: &str) -> Vec<String> {
    validation::dns1123_subdomain(&name.to_lowercase())
}

pub(crate) static CLAIM: Strategy = Strategy {
    status: Some(|| json!({})),
    own_defaults: |claim| count_devices(claim, "spec.devices"),
    check: |claim, errors| check_claim(claim.at("spec"), &Path::new("spec"), errors),
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

const DEVICES: &[FieldRule] = &[
    ("requests", UniqueBy("name")),
    ("requests[].name", IsText(validation::dns1123_label)),
    ("requests[].exactly.deviceClassName", Named(validation::dns1123_subdomain)),
    ("requests[].exactly.allocationMode", OneOf(&["All", "ExactCount"])),
    ("requests[].exactly.count", Within(1, MAX, "must be greater than zero")),
    ("requests[].firstAvailable[].name", IsText(validation::dns1123_label)),
    ("requests[].firstAvailable[].deviceClassName", Named(validation::dns1123_subdomain)),
    ("requests[].firstAvailable[].allocationMode", OneOf(&["All", "ExactCount"])),
    ("requests[].firstAvailable[].count", Within(1, MAX, "must be greater than zero")),
    ("constraints[].requests", Unique),
    ("constraints[].matchAttribute", Text(qualified_attribute)),
    ("constraints[].distinctAttribute", Text(qualified_attribute)),
    ("config[].requests", Unique),
];

const TOLERATION: &[FieldRule] = &[
    ("key", TextIfAny(validation::qualified_name)),
    ("operator", IsOneOf(&["Equal", "Exists"])),
    ("value", TextIfAny(validation::label_value)),
];

/// Validates the tolerations of a request.
fn check_tolerations(request: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, toleration) in request.items("tolerations").iter().enumerate() {
        let path = path.child("tolerations").index(i);
        crate::fields::check(toleration, TOLERATION, &path, errors);
        if toleration.text("operator") == "Equal" && toleration.blank("key") {
            let detail = "key must not be empty if the operator is Equal";
            errors.push(FieldError::required(&path.child("key"), detail));
        }
        let effect = toleration.text("effect");
        if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(&path.child("effect"), effect, TAINT_EFFECTS));
        }
    }
}

/// The longest name of an attribute without its domain, in bytes.
const ATTRIBUTE_LENGTH: usize = 32;

/// Validates the name of an attribute with its domain, such as `gpu.example.com/memory`.
fn qualified_attribute(name: &str) -> Vec<String> {
    let Some((domain, name)) = name.split_once('/') else {
        let mut messages = attribute_name(name);
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        messages.push(detail.to_owned());
        return messages;
    };
    [validation::dns1123_subdomain(domain), attribute_name(name)].concat()
}

fn attribute_name(name: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.len() > ATTRIBUTE_LENGTH {
        return vec![format!("may not be more than {ATTRIBUTE_LENGTH} bytes")];
    }
    if name.chars().all(is_word) && name.starts_with(|c: char| is_word(c) && !c.is_ascii_digit()) {
        return Vec::new();
    }
    let detail = "a valid C identifier must start with alphabetic character or '_', followed by a \
        string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', \
        regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
    vec![detail.to_owned()]
}

/// Validates the spec of a claim or claim template.
fn check_claim(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (devices, path) = (spec.at("devices"), path.child("devices"));
    if validate_counts(devices, &path, errors) {
        return;
    }
    crate::fields::check(devices, DEVICES, &path, errors);
    for (i, request) in devices.items("requests").iter().enumerate() {
        let path = path.child("requests").index(i);
        check_selectors(request.at("exactly"), &path.child("exactly"), errors);
        check_tolerations(request.at("exactly"), &path.child("exactly"), errors);
        let mut seen = HashSet::new();
        for (j, option) in request.items("firstAvailable").iter().enumerate() {
            let path = path.child("firstAvailable").index(j);
            check_selectors(option, &path, errors);
            check_tolerations(option, &path, errors);
            if !seen.insert(option.text("name")) {
                errors.push(FieldError::duplicate(&path, option.text("name")));
            }
        }
        if request.has("exactly") != request.blank("firstAvailable") {
            let detail = "exactly one of `exactly` or `firstAvailable` is required";
            errors.push(FieldError::required(&path, detail));
        }
    }
    let (mut names, mut subrequests) = (HashSet::new(), HashSet::new());
    for request in devices.items("requests") {
        let name = request.text("name");
        if names.insert(name) {
            let alternatives = request.items("firstAvailable").iter();
            subrequests.extend(alternatives.map(|s| (name, s.text("name"))));
        }
    }
    let known = |name: &str| match name.split_once('/') {
        None => names.contains(name),
        Some(pair) => subrequests.contains(&pair),
    };
    let check_names = |referrer: &Value, path: &Path, errors: &mut ErrorList| {
        for (j, name) in referrer.items("requests").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !known(name) {
                let detail = "must be the name of a request in the claim or the name of a request \
                    and a subrequest separated by '/'";
                errors.push(FieldError::invalid(&path.child("requests").index(j), name, detail));
            }
        }
    };
    let configurations = path.child("config");
    check_configurations(devices.items("config"), &configurations, errors);
    for (i, configuration) in devices.items("config").iter().enumerate() {
        check_names(configuration, &configurations.index(i), errors);
    }
    for (i, constraint) in devices.items("constraints").iter().enumerate() {
        let path = path.child("constraints").index(i);
        check_names(constraint, &path, errors);
        if constraint.blank("matchAttribute") == constraint.blank("distinctAttribute") {
            let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, \
                but multiple fields are set";
            errors.push(FieldError::required(&path, detail));
        }
    }
}

/// The maximum number of requests, constraints or configurations of a claim.
const MAX_REQUESTS: usize = 32;
/// The maximum number of alternatives of a request.
const MAX_ALTERNATIVES: usize = 8;

/// Reports lists over upstream's limits and returns `true` if there are any. Such a claim is not validated further.
fn validate_counts(devices: &Value, path: &Path, errors: &mut ErrorList) -> bool {
    let before = errors.len();
    for field in ["requests", "constraints", "config"] {
        let count = devices.items(field).len();
        if count > MAX_REQUESTS {
            errors.push(FieldError::too_many(&path.child(field), count, MAX_REQUESTS));
        }
    }
    for (i, request) in devices.items("requests").iter().enumerate().take(MAX_REQUESTS) {
        let count = request.items("firstAvailable").len();
        if count > MAX_ALTERNATIVES {
            let path = path.child("requests").index(i).child("firstAvailable");
            errors.push(FieldError::too_many(&path, count, MAX_ALTERNATIVES));
        }
    }
    errors.len() > before
}

/// Sets the count of a request for an exact number of devices to 1 if it is 0.
fn count_devices(object: &mut Value, devices: &str) {
    let count = |request: &mut Value| {
        if request.text("allocationMode") == "ExactCount" && request.int("count") == 0 {
            request.set("count", 1);
        }
    };
    for request in object.items_mut(&format!("{devices}.requests")) {
        request.at_mut("exactly").into_iter().for_each(count);
        request.items_mut("firstAvailable").for_each(count);
    }
}

/// The maximum number of conditions of a rule.
const MAX_CONDITIONS: usize = 8;

/// The effects of taints. A rule with `None` only shows which Pods another effect would concern.
const TAINT_EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

pub(crate) static TAINT_RULE: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_create: |rule, now| {
        if let Some(taint) = rule.at_mut(&["spec", "taint"]) {
            taint.set_default("timeAdded", now);
        }
    },
    own_update: |new, old, now| {
        let changed = new.at("spec.taint.effect") != old.at("spec.taint.effect");
        let same_time = new.at("spec.taint.timeAdded") == old.at("spec.taint.timeAdded");
        if let Some(taint) = new.at_mut(&["spec", "taint"]) {
            if changed && same_time {
                taint.remove("timeAdded");
            }
            taint.set_default("timeAdded", now);
        }
    },
    check: |rule, errors| {
        let (taint, path) = (rule.at("spec.taint"), Path::new("spec").child("taint"));
        check_taint(taint, &path, errors);
        if !taint.is_object() {
            errors.push(FieldError::required(&path, ""));
        }
    },
    check_status: |new, _, _, errors| {
        let (conditions, path) =
            (new.items("status.conditions"), Path::new("status").child("conditions"));
        validate_conditions(conditions, &path, errors);
        if conditions.len() > MAX_CONDITIONS {
            errors.push(FieldError::too_many(&path, conditions.len(), MAX_CONDITIONS));
        }
    },
    fields: &[
        ("spec.deviceSelector.driver", TextIfAny(validation::dns1123_subdomain)),
        ("spec.deviceSelector.device", TextIfAny(validation::dns1123_label)),
        ("spec.deviceSelector.pool", TextIfAny(pool_name)),
    ],
    ..Strategy::PLAIN
};

const TAINT: &[FieldRule] = &[
    ("key", IsText(validation::qualified_name)),
    ("value", TextIfAny(validation::label_value)),
    ("effect", Required("")),
];

fn check_taint(taint: &Value, path: &Path, errors: &mut ErrorList) {
    crate::fields::check(taint, TAINT, path, errors);
    let effect = taint.text("effect");
    if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(&path.child("effect"), effect, TAINT_EFFECTS));
    }
}

/// Sets the time of taints without one to the time of the write.
fn date_taints(slice: &mut Value, now: &str) {
    for device in slice.items_mut("spec.devices") {
        for taint in device.items_mut("taints") {
            taint.set_default("timeAdded", now);
        }
    }
}

pub(crate) static CLAIM_TEMPLATE: Strategy = Strategy {
    own_defaults: |template| count_devices(template, "spec.spec.devices"),
    check: |template, errors| {
        let path = Path::new("spec").child("spec");
        check_claim(template.at("spec.spec"), &path, errors);
    },
    fields: &[("spec.metadata.labels", Labels)],
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

pub(crate) static SLICE: Strategy = Strategy {
    generation: true,
    own_create: date_taints,
    own_update: |new, _, now| date_taints(new, now),
    check: check_slice,
    fields: SLICE_FIELDS,
    check_update: |new, old, errors| {
        for field in ["spec.nodeName", "spec.driver", "spec.pool.name"] {
            check_immutable(new, old, field, errors);
        }
    },
    selectable: &[
        ("spec.nodeName", |slice| slice.text("spec.nodeName").to_owned()),
        ("spec.driver", |slice| slice.text("spec.driver").to_owned()),
    ],
    warnings: |slice, _| {
        let driver = slice.text("spec.driver");
        let applies = driver.chars().any(char::is_uppercase);
        let words = || {
            format!(
                "spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"
            )
        };
        applies.then(words).into_iter().collect()
    },
    ..Strategy::PLAIN
};

const SLICE_FIELDS: &[FieldRule] = &[
    ("spec.driver", Named(driver_name)),
    ("spec.pool.name", Named(pool_name)),
    ("spec.nodeName", TextIfAny(validation::dns1123_subdomain)),
    ("spec.pool.generation", Within(0, MAX, "must be greater than or equal to zero")),
    ("spec.pool.resourceSliceCount", IsWithin(1, MAX, "must be greater than zero")),
    ("spec.devices", UniqueBy("name")),
    ("spec.devices[].name", IsText(validation::dns1123_label)),
];

/// Validates a pool name: subdomains separated by slashes.
pub(super) fn pool_name(name: &str) -> Vec<String> {
    name.split('/').flat_map(validation::dns1123_subdomain).collect()
}

fn check_slice(slice: &Value, errors: &mut ErrorList) {
    let (spec, path) = (slice.at("spec"), Path::new("spec"));
    const PLACES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    let placed = PLACES.iter().filter(|place| !spec.blank(place) && *spec.at(place) != false);
    if placed.count() != 1 {
        let detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
        errors.push(FieldError::required(&path, detail));
    }
    for (i, device) in spec.items("devices").iter().enumerate() {
        let path = path.child("devices").index(i);
        for (j, taint) in device.items("taints").iter().enumerate() {
            check_taint(taint, &path.child("taints").index(j), errors);
        }
        let path = path.child("attributes");
        for (name, attribute) in device.pairs("attributes") {
            if attribute.as_object().is_none_or(|values| values.len() != 1) {
                let detail = "exactly one value must be specified";
                errors.push(FieldError::invalid(&path.key(name), "", detail));
            }
            if attribute.text("string").len() > 64 {
                errors.push(FieldError::too_long(&path.key(name).child("string"), 64));
            }
            if let Some(version) = attribute.at("version").as_str()
                && !is_semantic_version(version)
            {
                let detail = "must be a string compatible with semver.org spec 2.0.0";
                let path = path.key(name).child("version");
                errors.push(FieldError::invalid(&path, version, detail));
            }
        }
    }
}

/// Reports whether a text of at most 64 bytes is a semantic version.
fn is_semantic_version(text: &str) -> bool {
    text.len() <= 64 && semver::Version::parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_native_resources_of_classes() {
        let errors = |name: &str| {
            let class = json!({"metadata": {"name": "x"}, "spec": {"extendedResourceName": name}});
            DEVICE_CLASS.create_errors(&class, false).len()
        };
        assert_eq!(errors("example.com/gpu"), 0);
        for name in ["cpu", "kubernetes.io/gpu", "requests.a.b/gpu", "example.com/", "a/b/c"] {
            assert_eq!(errors(name), 1, "{name}");
        }
        assert_eq!(errors(&format!("example.com/{}", "x".repeat(64))), 1);
    }

    #[test]
    fn dates_taints_of_rules_and_rejects_unknown_effects() {
        let rule = |taint: Value| json!({"metadata": {"name": "x"}, "spec": {"taint": taint}});
        let old = rule(json!({"key": "a.b/c", "effect": "NoExecute", "timeAdded": "then"}));
        let mut same = old.clone();
        (TAINT_RULE.own_update)(&mut same, &old, "now");
        assert_eq!(same, old);
        let mut other = old.clone();
        other["spec"]["taint"]["effect"] = json!("NoSchedule");
        (TAINT_RULE.own_update)(&mut other, &old, "now");
        assert_eq!(other["spec"]["taint"]["timeAdded"], "now");
        let mut fresh = rule(json!({"key": "a", "effect": "None"}));
        (TAINT_RULE.own_create)(&mut fresh, "now");
        assert_eq!(fresh["spec"]["taint"]["timeAdded"], "now");
        let errors = |rule: &Value| TAINT_RULE.create_errors(rule, false);
        assert!(errors(&fresh).is_empty() && errors(&old).is_empty());
        let wrong = errors(&rule(json!({"key": "", "effect": "PreferNoSchedule"})));
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert_eq!(errors(&json!({"metadata": {"name": "x"}})).len(), 1);
        // The time is that of the effect.
        let mut other = old.clone();
        other["spec"]["taint"]["value"] = json!("v");
        (TAINT_RULE.own_update)(&mut other, &old, "now");
        assert_eq!(other["spec"]["taint"]["timeAdded"], "then");
    }

    #[test]
    fn bounds_conditions_of_taint_rule() {
        let condition = |kind: usize| {
            json!({"type": format!("T{kind}"), "status": "False", "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let with = |count: usize| {
            let conditions: Vec<Value> = (0..count).map(condition).collect();
            json!({"metadata": {"name": "x"}, "spec": {}, "status": {"conditions": conditions}})
        };
        let errors = |new: &Value| TAINT_RULE.status_errors(new, &with(0), false, "now");
        assert!(errors(&with(8)).is_empty());
        let found = api_meta::field::aggregate(&errors(&with(9)));
        assert_eq!(found, "status.conditions: Too many: 9: must have at most 8 items");
        let mut wrong = with(1);
        wrong["status"]["conditions"][0]["reason"] = json!("");
        assert_eq!(errors(&wrong).len(), 1);
    }

    #[test]
    fn rejects_claims_and_classes_with_unsound_selectors() {
        let selectors = json!([{"cel": {"expression": "device.nonsense"}}]);
        let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, "selectors": selectors});
        let option = json!({"name": "o", "deviceClassName": "c", "selectors": selectors});
        let requests =
            json!([{"name": "a", "exactly": exactly}, {"name": "b", "firstAvailable": [option]}]);
        let spec = json!({"devices": {"requests": requests}});
        let metadata = json!({"name": "x", "namespace": "d"});
        let claim = json!({"metadata": metadata, "spec": spec});
        let template = json!({"metadata": metadata, "spec": {"spec": spec}});
        let class = json!({"metadata": {"name": "x"}, "spec": {"selectors": selectors}});
        for (strategy, object, namespaced, places) in [
            (
                &CLAIM,
                claim,
                true,
                &["spec.devices.requests[0].exactly", "spec.devices.requests[1].firstAvailable[0]"]
                    [..],
            ),
            (
                &CLAIM_TEMPLATE,
                template,
                true,
                &[
                    "spec.spec.devices.requests[0].exactly",
                    "spec.spec.devices.requests[1].firstAvailable[0]",
                ],
            ),
            (&DEVICE_CLASS, class, false, &["spec"]),
        ] {
            let errors = strategy.create_errors(&object, namespaced);
            let found: Vec<_> = errors.iter().map(|error| error.field.to_string()).collect();
            let wanted: Vec<_> =
                places.iter().map(|place| format!("{place}.selectors[0].cel.expression")).collect();
            assert_eq!(found, wanted);
            // Errors of unchanged content do not block other changes.
            let mut changed = object.clone();
            changed["metadata"]["labels"] = json!({"a": "b"});
            assert!(strategy.update_errors(&changed, &object, namespaced).is_empty());
        }
        let many = vec![json!({"name": "a", "exactly": {"deviceClassName": "c"}}); 33];
        let claim = json!({"metadata": metadata, "spec": {"devices": {"requests": many}}});
        let errors = CLAIM.create_errors(&claim, true);
        assert_eq!(
            errors[0].to_string(),
            "spec.devices.requests: Too many: 33: must have at most 32 items"
        );
    }
}
