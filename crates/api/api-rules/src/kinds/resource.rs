//! Rules of dynamic resource allocation: DeviceClasses, ResourceClaims, their templates, and DeviceTaintRules.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, is_zero, validation};
use serde_json::{Value, json};

use crate::{
    conditions::validate_conditions,
    expressions::devices::check_selectors,
    fields::{
        FieldRule,
        Rule::{IsOneOf, Named, OneOf, TextIfAny, Within},
    },
    meta::{check_immutable, strings},
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
        for (i, config) in class.items("spec.config").iter().enumerate() {
            check_opaque(config, &path.index(i), errors);
        }
    },
    ..Strategy::PLAIN
};

/// The maximum number of consumers of a claim.
const MAX_CONSUMERS: usize = 256;

pub(crate) static CLAIM: Strategy = Strategy {
    status: Some(|| json!({})),
    own_defaults: |claim| count_devices(claim, "spec.devices"),
    check: |claim, errors| check_claim(claim.at("spec"), &Path::new("spec"), errors),
    check_status: |new, _, _, errors| {
        let path = Path::new("status").child("reservedFor");
        let count = new.items("status.reservedFor").len();
        if count > 0 && !new.has("status.allocation") {
            let detail = "may not be specified when `allocated` is not set";
            errors.push(FieldError::forbidden(&path, detail));
        }
        if count > MAX_CONSUMERS {
            errors.push(FieldError::too_many(&path, count, MAX_CONSUMERS));
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

/// The fields of a request for devices, which may also be an alternative of another request.
const REQUEST: &[FieldRule] = &[
    ("deviceClassName", Named(validation::dns1123_subdomain)),
    ("allocationMode", OneOf(&["All", "ExactCount"])),
    ("count", Within(1, MAX, "must be greater than zero")),
];

const TOLERATION: &[FieldRule] = &[
    ("key", TextIfAny(validation::qualified_name)),
    ("operator", IsOneOf(&["Equal", "Exists"])),
    ("value", TextIfAny(validation::label_value)),
    ("effect", OneOf(EFFECTS)),
];

/// Validates a request for devices, or one of its alternatives.
fn check_request(request: &Value, path: &Path, errors: &mut ErrorList) {
    crate::fields::check(request, REQUEST, path, errors);
    check_selectors(request, path, errors);
    if request.text("allocationMode") == "All" && request.int("count") != 0 {
        let detail = "must not be specified when allocationMode is 'All'";
        errors.push(FieldError::invalid(&path.child("count"), request.int("count"), detail));
    }
    let (tolerations, path) = (request.items("tolerations"), path.child("tolerations"));
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        crate::fields::check(toleration, TOLERATION, &path, errors);
        if toleration.text("operator") == "Exists" && !toleration.blank("value") {
            let detail = "must be empty for operator `Exists`";
            errors.push(FieldError::invalid(
                &path.child("value"),
                toleration.text("value"),
                detail,
            ));
        }
    }
}

/// Validates the names of a list's items: labels without duplicates.
pub(super) fn check_names(list: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, item) in list.iter().enumerate() {
        let (name, path) = (item.text("name"), path.index(i));
        for message in validation::dns1123_label(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

/// The maximum length of a driver's name.
const MAX_DRIVER: usize = 63;

/// Validates the mandatory name of a driver, in lower case: a subdomain of limited length.
pub(super) fn check_driver(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if name.len() > MAX_DRIVER {
        errors.push(FieldError::too_long(path, MAX_DRIVER));
    }
    if !name.is_empty() {
        for message in validation::dns1123_subdomain(&name.to_lowercase()) {
            errors.push(FieldError::invalid(path, name, message));
        }
    }
}

/// The maximum size of a driver's parameters, as JSON.
const MAX_PARAMETERS: usize = 10 * 1024;

/// Validates the mandatory field `opaque` of a configuration.
fn check_opaque(config: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("opaque");
    if !config.has("opaque") {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    check_driver(config.text("opaque.driver"), &path.child("driver"), errors);
    let (parameters, path) = (config.at("opaque.parameters"), path.child("parameters"));
    if parameters.is_null() {
        errors.push(FieldError::required(&path, ""));
    } else if parameters.to_string().len() > MAX_PARAMETERS {
        errors.push(FieldError::too_long(&path, MAX_PARAMETERS));
    } else if !parameters.is_object() {
        let detail = "must be a valid JSON object";
        errors.push(FieldError::invalid(&path, "<value omitted>", detail));
    }
}

/// The maximum length of the part of an attribute's name after the domain.
const MAX_IDENTIFIER: usize = 32;

/// Validates the name of an attribute or a capacity: an identifier, optionally with a domain. As upstream, names with
/// more slashes are not validated.
pub(super) fn check_attribute_name(name: &str, path: &Path, errors: &mut ErrorList) {
    let identifier = match name.split_once('/') {
        None => name,
        Some((_, rest)) if rest.contains('/') => return,
        Some((domain, identifier)) => {
            check_domain(domain, path, errors);
            if identifier.is_empty() {
                errors.push(FieldError::invalid(path, "", "the name must not be empty"));
                return;
            }
            identifier
        }
    };
    if identifier.len() > MAX_IDENTIFIER {
        errors.push(FieldError::too_long(path, MAX_IDENTIFIER));
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_identifier =
        identifier.chars().all(is_word) && identifier.starts_with(|c: char| !c.is_ascii_digit());
    if !is_identifier {
        let detail = "a valid C identifier must start with alphabetic character or '_', followed by \
            a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', \
            regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.push(FieldError::invalid(path, identifier, detail));
    }
}

fn check_domain(domain: &str, path: &Path, errors: &mut ErrorList) {
    if domain.is_empty() {
        errors.push(FieldError::invalid(path, "", "the domain must not be empty"));
        return;
    }
    if domain.len() > MAX_DRIVER {
        errors.push(FieldError::too_long(path, MAX_DRIVER));
    }
    for message in validation::dns1123_subdomain(&domain.to_lowercase()) {
        errors.push(FieldError::invalid(path, domain, message));
    }
}

/// Validates the attribute of a constraint, whose name must have a domain.
fn check_constraint_attribute(name: &str, path: &Path, errors: &mut ErrorList) {
    check_attribute_name(name, path, errors);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(FieldError::invalid(path, name, detail));
    }
}

/// The names of a claim's requests and of their alternatives.
struct RequestNames<'v>(HashSet<(&'v str, Option<&'v str>)>);

impl<'v> RequestNames<'v> {
    fn new(requests: &'v [Value]) -> Self {
        let mut names = HashSet::new();
        for request in requests {
            let name = request.text("name");
            // Alternatives of a second request of the same name do not count.
            if names.insert((name, None)) {
                let alternatives = request.items("firstAvailable").iter();
                names.extend(alternatives.map(|option| (name, Some(option.text("name")))));
            }
        }
        Self(names)
    }

    /// Validates the list `requests` of a constraint or configuration.
    fn check(&self, list: &[Value], path: &Path, errors: &mut ErrorList) {
        let mut seen = HashSet::new();
        for (i, name) in list.iter().enumerate() {
            let (name, path) = (name.as_str().unwrap_or_default(), path.index(i));
            let key = name.split_once('/').map_or((name, None), |(name, sub)| (name, Some(sub)));
            for part in name.split('/') {
                for message in validation::dns1123_label(part) {
                    errors.push(FieldError::invalid(&path, part, message));
                }
            }
            if !self.0.contains(&key) {
                let detail = "must be the name of a request in the claim or the name of a request \
                    and a subrequest separated by '/'";
                errors.push(FieldError::invalid(&path, name, detail));
            }
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path, name));
            }
        }
    }
}

/// Validates the spec of a claim or claim template.
fn check_claim(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (devices, path) = (spec.at("devices"), path.child("devices"));
    if validate_counts(devices, &path, errors) {
        return;
    }
    let requests = devices.items("requests");
    check_names(requests, &path.child("requests"), errors);
    for (i, request) in requests.iter().enumerate() {
        let path = path.child("requests").index(i);
        let detail = "exactly one of `exactly` or `firstAvailable` is required";
        match (request.has("exactly"), !request.blank("firstAvailable")) {
            (false, false) => errors.push(FieldError::required(&path, detail)),
            (true, true) => {
                let detail = format!("{detail}, but multiple fields are set");
                errors.push(FieldError::invalid(&path, Value::Null, detail));
            }
            _ => {}
        }
        if request.has("exactly") {
            check_request(request.at("exactly"), &path.child("exactly"), errors);
        }
        let (options, path) = (request.items("firstAvailable"), path.child("firstAvailable"));
        check_names(options, &path, errors);
        for (j, option) in options.iter().enumerate() {
            check_request(option, &path.index(j), errors);
        }
    }
    let names = RequestNames::new(requests);
    for (i, constraint) in devices.items("constraints").iter().enumerate() {
        check_constraint(constraint, &names, &path.child("constraints").index(i), errors);
    }
    for (i, config) in devices.items("config").iter().enumerate() {
        let path = path.child("config").index(i);
        names.check(config.items("requests"), &path.child("requests"), errors);
        check_opaque(config, &path, errors);
    }
}

fn check_constraint(
    constraint: &Value,
    names: &RequestNames<'_>,
    path: &Path,
    errors: &mut ErrorList,
) {
    names.check(constraint.items("requests"), &path.child("requests"), errors);
    let fields = ["matchAttribute", "distinctAttribute"];
    if !fields.iter().any(|field| constraint.has(*field)) {
        let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, \
            but multiple fields are set";
        errors.push(FieldError::required(path, detail));
    }
    for field in fields {
        if let Some(name) = constraint.at(field).as_str() {
            check_constraint_attribute(name, &path.child(field), errors);
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
pub(super) const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

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
        crate::fields::check(taint, TAINT, &path, errors);
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
    ("key", Named(validation::qualified_name)),
    ("value", TextIfAny(validation::label_value)),
    ("effect", IsOneOf(EFFECTS)),
];

pub(crate) static CLAIM_TEMPLATE: Strategy = Strategy {
    own_defaults: |template| count_devices(template, "spec.spec.devices"),
    check: |template, errors| {
        check_template_metadata(template.at("spec.metadata"), errors);
        let path = Path::new("spec").child("spec");
        check_claim(template.at("spec.spec"), &path, errors);
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

/// Validates a pool name: subdomains separated by slashes.
pub(super) fn pool_name(name: &str) -> Vec<String> {
    name.split('/').flat_map(validation::dns1123_subdomain).collect()
}

/// Validates the metadata of the claims of a template: labels and annotations, and nothing else.
fn check_template_metadata(metadata: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("metadata");
    errors.append(&mut validation::labels(&strings(metadata.at("labels")), &path.child("labels")));
    let annotations = strings(metadata.at("annotations"));
    errors.append(&mut validation::annotations(&annotations, &path.child("annotations")));
    for (field, _) in metadata.pairs("").filter(|(_, value)| !is_zero(value)) {
        if !matches!(field.as_str(), "labels" | "annotations") {
            errors.push(FieldError::forbidden(&path.child(field), "cannot be set"));
        }
    }
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
        assert_eq!(wrong.len(), 2, "{wrong:?}");
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

    #[test]
    fn validates_claims() {
        let errors = |devices: Value| {
            let mut errors = ErrorList::new();
            check_claim(&json!({ "devices": devices }), &Path::new("spec"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let request = |fields: Value| {
            let mut exactly = json!({"deviceClassName": "c"});
            exactly.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"requests": [{"name": "r", "exactly": exactly}]})
        };
        let with = |field: &str, value: Value| {
            let mut devices = request(json!({}));
            devices[field] = json!([value]);
            devices
        };
        let opaque = |driver: &str| json!({"driver": driver, "parameters": {}});
        let toleration = |value: Value| request(json!({ "tolerations": [value] }));
        for (devices, expected) in [
            (toleration(json!({"key": "k", "operator": "Exists", "effect": "None"})), ""),
            (toleration(json!({"key": "!", "operator": "Exists"})), "tolerations[0].key: Invalid"),
            (toleration(json!({"operator": "Gt"})), "tolerations[0].operator: Unsupported"),
            (
                toleration(json!({"operator": "Exists", "effect": "x"})),
                "tolerations[0].effect: Unsupported",
            ),
            (request(json!({"allocationMode": "All", "count": 2})), "count: Invalid value: 2"),
            (
                json!({"requests": [{"name": "r", "firstAvailable": [
                    {"name": "s", "deviceClassName": "c"}, {"name": "s", "deviceClassName": "c"}]}]}),
                "firstAvailable[1]: Duplicate value: \"s\"",
            ),
            (with("config", json!({"requests": ["r"], "opaque": opaque("d")})), ""),
            (with("config", json!({"requests": ["x"], "opaque": opaque("d")})), "requests[0]: Inv"),
            (with("config", json!({"opaque": opaque(&"d".repeat(64))})), "Too long"),
            (with("config", json!({})), "config[0].opaque: Required value"),
            (with("constraints", json!({"matchAttribute": "a/b"})), ""),
            (with("constraints", json!({"matchAttribute": "b"})), "separated by a slash"),
        ] {
            let found = errors(devices.clone());
            match expected {
                "" => assert_eq!(found, [""; 0], "{devices}"),
                _ => assert!(found.len() == 1 && found[0].contains(expected), "{found:?}"),
            }
        }
    }
}
