//! Rules of ResourceSlices: pools of devices, their attributes, capacities, counters and taints.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::Value;

use super::resource::{EFFECTS, check_attribute_name, check_driver, check_names, pool_name};
use crate::{
    fields::{
        FieldRule,
        Rule::{IsOneOf, IsText, IsWithin, Named, TextIfAny, Unique, Within},
    },
    meta::check_immutable,
    pod::validate_node_selector,
    strategy::Strategy,
};

/// Removes fields whose gates (`DRAListTypeAttributes`, `DRANodeAllocatableResources`) are off, unless the old slice
/// has one of them.
fn drop_disabled_fields(new: &mut Value, old: Option<&Value>) {
    const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
    const MAPPINGS: &str = "nodeAllocatableResourceMappings";
    let devices = || old.into_iter().flat_map(|old| old.items("spec.devices"));
    let has_list = |value: &Value| LISTS.iter().any(|list| value.has(*list));
    if !devices().any(|device| device.has(MAPPINGS)) {
        for device in new.items_mut("spec.devices") {
            device.remove(MAPPINGS);
        }
    }
    if devices().any(|device| device.pairs("attributes").any(|(_, value)| has_list(value))) {
        return;
    }
    for device in new.items_mut("spec.devices") {
        let attributes = device.map_mut("attributes").into_iter().flat_map(|map| map.values_mut());
        attributes.for_each(|value| LISTS.iter().for_each(|list| drop(value.remove(*list))));
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

pub(crate) static RESOURCE_SLICE: Strategy = Strategy {
    generation: true,
    own_create: |slice, now| {
        drop_disabled_fields(slice, None);
        date_taints(slice, now);
    },
    own_update: |new, old, now| {
        drop_disabled_fields(new, Some(old));
        date_taints(new, now);
    },
    check: check_slice,
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

const MAX: i64 = i64::MAX;

const SLICE: &[FieldRule] = &[
    ("pool.name", Named(pool_name)),
    ("pool.generation", Within(0, MAX, "must be greater than or equal to zero")),
    ("pool.resourceSliceCount", IsWithin(1, MAX, "must be greater than zero")),
];

/// The maximum number of devices of a slice.
const MAX_DEVICES: usize = 128;
/// The maximum number of devices of a slice with taints or with counters.
const MAX_COMPLEX_DEVICES: usize = 64;
/// The maximum number of counter sets of a slice.
const MAX_COUNTER_SETS: usize = 8;
/// The maximum number of counters of a set.
const MAX_COUNTERS: usize = 32;
/// The maximum number of attributes and capacities of a device.
const MAX_ATTRIBUTES: usize = 32;
/// The maximum number of taints of a device.
const MAX_TAINTS: usize = 16;
/// The maximum number of counter sets that a device consumes.
const MAX_CONSUMED_SETS: usize = 2;
/// The maximum number of values that a request policy lists.
const MAX_VALID_VALUES: usize = 10;
/// The maximum number of binding conditions of a device, and of binding failure conditions.
const MAX_BINDING_CONDITIONS: usize = 4;
/// The maximum length of a string or version of an attribute.
const MAX_VALUE: usize = 64;

fn check_slice(slice: &Value, errors: &mut ErrorList) {
    let (spec, path) = (slice.at("spec"), Path::new("spec"));
    check_driver(spec.text("driver"), &path.child("driver"), errors);
    crate::fields::check(spec, SLICE, &path, errors);
    if let Some(node) = spec.at("nodeName").as_str() {
        let empty = "must be either unset or set to a non-empty string";
        check_node_name(node, empty, &path.child("nodeName"), errors);
    }
    check_node_selector(spec, &path, errors);
    const PLACES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    if count_places(spec, &PLACES) != 1 {
        let detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
        errors.push(FieldError::required(&path, detail));
    }
    if spec.has("devices") && spec.has("sharedCounters") {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid(&path, "", detail));
    }
    check_devices(spec, &path.child("devices"), errors);
    check_counter_sets(spec.items("sharedCounters"), &path.child("sharedCounters"), errors);
}

fn check_node_name(node: &str, empty: &str, path: &Path, errors: &mut ErrorList) {
    if node.is_empty() {
        errors.push(FieldError::invalid(path, node, empty));
        return;
    }
    for message in validation::dns1123_subdomain(node) {
        errors.push(FieldError::invalid(path, node, message));
    }
}

/// Validates the node selector of a slice or device, which has exactly one term.
fn check_node_selector(owner: &Value, path: &Path, errors: &mut ErrorList) {
    if !owner.has("nodeSelector") {
        return;
    }
    let (selector, path) = (owner.at("nodeSelector"), path.child("nodeSelector"));
    validate_node_selector(selector, &path, errors);
    if selector.items("nodeSelectorTerms").len() != 1 {
        let detail = "must have exactly one node selector term";
        let terms = selector.at("nodeSelectorTerms").clone();
        errors.push(FieldError::invalid(&path.child("nodeSelectorTerms"), terms, detail));
    }
}

/// Returns the number of the fields that select nodes.
fn count_places(owner: &Value, places: &[&str]) -> usize {
    places.iter().filter(|place| !owner.blank(**place) && *owner.at(**place) != false).count()
}

fn check_devices(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let devices = spec.items("devices");
    let is_complex = |device: &Value| !device.blank("taints") || !device.blank("consumesCounters");
    let limit = if devices.iter().any(is_complex) { MAX_COMPLEX_DEVICES } else { MAX_DEVICES };
    if devices.len() > limit {
        errors.push(FieldError::too_many(path, devices.len(), limit));
        return;
    }
    check_names(devices, path, errors);
    for (i, device) in devices.iter().enumerate() {
        let path = path.index(i);
        check_attributes(device, &path, errors);
        check_capacities(device, &path, errors);
        check_device_counters(device, &path.child("consumesCounters"), errors);
        check_taints(device.items("taints"), &path.child("taints"), errors);
        crate::fields::check(device, DEVICE, &path, errors);
        check_binding_conditions(device, &path, errors);
        check_device_node(device, spec.flag("perDeviceNodeSelection"), &path, errors);
    }
}

const DEVICE: &[FieldRule] = &[
    ("bindingConditions[]", IsText(validation::qualified_name)),
    ("bindingConditions", Unique),
    ("bindingFailureConditions[]", IsText(validation::qualified_name)),
    ("bindingFailureConditions", Unique),
];

/// Reports conditions of one kind without those of the other, too many, and conditions of both kinds.
fn check_binding_conditions(device: &Value, path: &Path, errors: &mut ErrorList) {
    const PAIR: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    for list in PAIR {
        let count = device.items(list).len();
        if count > MAX_BINDING_CONDITIONS {
            errors.push(FieldError::too_many(&path.child(list), count, MAX_BINDING_CONDITIONS));
        }
    }
    let conditions: HashSet<&Value> = device.items(PAIR[0]).iter().collect();
    for (i, condition) in device.items(PAIR[1]).iter().enumerate() {
        if conditions.contains(condition) {
            let detail = "bindingFailureConditions must not overlap with bindingConditions";
            let path = path.child(PAIR[1]).index(i);
            errors.push(FieldError::invalid(&path, condition.clone(), detail));
        }
    }
    for [missing, given] in [PAIR, [PAIR[1], PAIR[0]]] {
        if device.blank(missing) && !device.blank(given) {
            let detail = format!("{missing} are required to use {given}");
            let found = device.at(missing).clone();
            errors.push(FieldError::invalid(&path.child(missing), found, detail));
        }
    }
}

fn check_device_node(device: &Value, per_device: bool, path: &Path, errors: &mut ErrorList) {
    const PLACES: [&str; 3] = ["nodeName", "nodeSelector", "allNodes"];
    if !per_device {
        if PLACES.iter().any(|place| device.has(*place)) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if \
                `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.push(FieldError::invalid(path, Value::Null, detail));
        }
        return;
    }
    if let Some(node) = device.at("nodeName").as_str() {
        check_node_name(node, "must not be empty", &path.child("nodeName"), errors);
    }
    check_node_selector(device, path, errors);
    if count_places(device, &PLACES) != 1 {
        let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
            `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        errors.push(FieldError::required(path, detail));
    }
}

fn check_attributes(device: &Value, path: &Path, errors: &mut ErrorList) {
    let count = device.pairs("attributes").count() + device.pairs("capacity").count();
    if count > MAX_ATTRIBUTES {
        let detail = format!(
            "the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
        );
        errors.push(FieldError::invalid(path, count, detail));
    }
    for (name, attribute) in device.pairs("attributes") {
        let path = path.child("attributes");
        check_attribute_name(name, &path, errors);
        let path = path.key(name);
        if attribute.as_object().is_none_or(|values| values.len() != 1) {
            let detail = "exactly one value must be specified";
            errors.push(FieldError::invalid(&path, "", detail));
        }
        if attribute.text("string").len() > MAX_VALUE {
            errors.push(FieldError::too_long(&path.child("string"), MAX_VALUE));
        }
        if let Some(version) = attribute.at("version").as_str() {
            check_version(version, &path.child("version"), errors);
        }
    }
}

fn check_version(version: &str, path: &Path, errors: &mut ErrorList) {
    if cel::Version::parse(version).is_err() {
        let detail = "must be a string compatible with semver.org spec 2.0.0";
        errors.push(FieldError::invalid(path, version, detail));
    }
    if version.len() > MAX_VALUE {
        errors.push(FieldError::too_long(path, MAX_VALUE));
    }
}

fn check_taints(taints: &[Value], path: &Path, errors: &mut ErrorList) {
    const TAINT: &[FieldRule] = &[
        ("key", IsText(validation::qualified_name)),
        ("value", TextIfAny(validation::label_value)),
    ];
    if taints.len() > MAX_TAINTS {
        errors.push(FieldError::too_many(path, taints.len(), MAX_TAINTS));
        return;
    }
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        crate::fields::check(taint, TAINT, &path, errors);
        if taint.blank("effect") {
            errors.push(FieldError::required(&path.child("effect"), ""));
        } else {
            crate::fields::check(taint, &[("effect", IsOneOf(EFFECTS))], &path, errors);
        }
    }
}

fn check_counter_sets(sets: &[Value], path: &Path, errors: &mut ErrorList) {
    if sets.len() > MAX_COUNTER_SETS {
        errors.push(FieldError::too_many(path, sets.len(), MAX_COUNTER_SETS));
        return;
    }
    check_sets(sets, "name", path, errors);
}

fn check_device_counters(device: &Value, path: &Path, errors: &mut ErrorList) {
    let sets = device.items("consumesCounters");
    if sets.len() > MAX_CONSUMED_SETS {
        errors.push(FieldError::too_many(path, sets.len(), MAX_CONSUMED_SETS));
        return;
    }
    check_sets(sets, "counterSet", path, errors);
}

/// Validates sets of counters, which have distinct names.
fn check_sets(sets: &[Value], name: &'static str, path: &Path, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, set) in sets.iter().enumerate() {
        let path = path.index(i);
        crate::fields::check(set, &[(name, Named(validation::dns1123_label))], &path, errors);
        let (counters, at) = (set.pairs("counters").count(), path.child("counters"));
        if counters == 0 {
            errors.push(FieldError::required(&at, ""));
        } else if counters > MAX_COUNTERS {
            errors.push(FieldError::too_many(&at, counters, MAX_COUNTERS));
        }
        for (counter, _) in set.pairs("counters") {
            for message in validation::dns1123_label(counter) {
                errors.push(FieldError::invalid(&at, counter.as_str(), message));
            }
        }
        if !seen.insert(set.text(name)) {
            errors.push(FieldError::duplicate(&path, set.text(name)));
        }
    }
}

fn check_capacities(device: &Value, path: &Path, errors: &mut ErrorList) {
    for (name, capacity) in device.pairs("capacity") {
        let path = path.child("capacity");
        check_attribute_name(name, &path, errors);
        let path = path.key(name);
        if !capacity.has("requestPolicy") {
            continue;
        }
        let path = path.child("requestPolicy");
        if device.flag("allowMultipleAllocations") {
            check_policy(capacity, &path, errors);
        } else {
            errors.push(FieldError::forbidden(&path, "allowMultipleAllocations must be true"));
        }
    }
}

/// Parses a quantity; an absent one is zero.
fn quantity(value: &Value) -> Quantity {
    let number = value.as_i64().map(|number| number.to_string());
    let text = value.as_str().or(number.as_deref()).unwrap_or("0");
    Quantity::parse(text).unwrap_or_default()
}

/// Validates the policy by which requests share a capacity.
fn check_policy(capacity: &Value, path: &Path, errors: &mut ErrorList) {
    let (policy, size) = (capacity.at("requestPolicy"), quantity(capacity.at("value")));
    for kind in ["validRange", "validValues"] {
        if !policy.blank(kind) && !policy.has("default") {
            let detail = format!("required when {kind} is defined");
            errors.push(FieldError::required(&path.child("default"), detail));
        }
    }
    let default = policy.has("default").then(|| quantity(policy.at("default")));
    if !policy.blank("validValues") && !policy.blank("validRange") {
        let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \
            \"validRange\" at the same time";
        errors.push(FieldError::forbidden(path, detail));
    }
    check_values(policy, &size, default.as_ref(), path, errors);
    if policy.has("validRange") {
        let path = path.child("validRange");
        check_range(policy.at("validRange"), &size, default.as_ref(), &path, errors);
    }
}

fn check_values(
    policy: &Value,
    size: &Quantity,
    default: Option<&Quantity>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let values: Vec<Quantity> = policy.items("validValues").iter().map(quantity).collect();
    let path = path.child("validValues");
    if values.len() > MAX_VALID_VALUES {
        errors.push(FieldError::too_many(&path, values.len(), MAX_VALID_VALUES));
        return;
    }
    for (i, value) in values.iter().enumerate() {
        let path = path.index(i);
        if value > size {
            let detail = format!("option is larger than capacity value: {size}");
            errors.push(FieldError::invalid(&path, value.to_string(), detail));
        }
        let previous = i.checked_sub(1).and_then(|i| values.get(i));
        if previous.is_some_and(|previous| value < previous) {
            let detail = "values must be sorted in ascending order";
            errors.push(FieldError::invalid(&path, value.to_string(), detail));
        }
        if previous == Some(value) {
            errors.push(FieldError::duplicate(&path, value.value().to_string()));
        }
    }
    if let Some(default) = default
        && !values.is_empty()
        && !values.contains(default)
    {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(FieldError::invalid(&path, default.to_string(), detail));
    }
}

fn check_range(
    range: &Value,
    size: &Quantity,
    default: Option<&Quantity>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let mut invalid = |field: &str, value: &Quantity, detail: String| {
        errors.push(FieldError::invalid(&path.child(field), value.to_string(), detail));
    };
    if !range.has("min") {
        errors
            .push(FieldError::required(&path.child("min"), "required when validRange is defined"));
        return;
    }
    let [min, max, step] = ["min", "max", "step"].map(|field| quantity(range.at(field)));
    if min > *size {
        invalid("min", &min, format!("min is larger than capacity value: {size}"));
    }
    if let Some(default) = default
        && *default < min
    {
        invalid("min", default, format!("default is less than min: {min}"));
    }
    if range.has("max") {
        if max > *size {
            invalid("max", &max, format!("max is larger than capacity value: {size}"));
        }
        if min > max {
            invalid("max", &min, format!("min is larger than max: {max}"));
        }
        if let Some(default) = default
            && *default > max
        {
            invalid("max", default, format!("default is more than max: {max}"));
        }
    }
    if range.has("step") && !step.is_zero() {
        let one = min + step;
        if one > *size {
            let detail = format!("one step {one} is larger than capacity value: {size}");
            invalid("step", &step, detail);
        }
        let bounds = [range.has("max").then_some(&max), default];
        for value in bounds.into_iter().flatten() {
            let distance = value.value().saturating_sub(min.value());
            if distance.checked_rem(step.value()) != Some(0) {
                let detail =
                    format!("value is not a multiple of a given step ({step}) from ({min})");
                invalid("step", value, detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(spec: &Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        let mut slice = json!({"spec": {"driver": "d.example.com", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
        for (name, value) in spec.as_object().unwrap() {
            slice["spec"][name] = value.clone();
        }
        check_slice(&slice, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn device_errors(mut device: Value) -> Vec<String> {
        device["name"] = json!("d");
        errors(&json!({ "devices": [device] }))
    }

    #[test]
    fn validates_devices() {
        let policy = |policy: Value| {
            json!({"allowMultipleAllocations": true,
                "capacity": {"m": {"value": "5", "requestPolicy": policy}}})
        };
        for (device, expected) in [
            (json!({}), ""),
            (json!({"attributes": {"d.example.com/a": {"version": "1.2.3"}}}), ""),
            (json!({"attributes": {"a": {"version": "1.2"}}}), "attributes[a].version: Invalid"),
            (json!({"attributes": {"1a": {"int": 1}}}), "attributes: Invalid value: \"1a\""),
            (json!({"attributes": {"/a": {"int": 1}}}), "the domain must not be empty"),
            (json!({"taints": [{"key": "k", "effect": "None"}]}), ""),
            (json!({"taints": [{"key": "k"}]}), "taints[0].effect: Required value"),
            (json!({"taints": [{"key": "k", "effect": "x"}]}), "effect: Unsupported value"),
            (json!({"allNodes": true}), "can only be set if `perDeviceNodeSelection`"),
            (json!({"bindingConditions": ["a"]}), "bindingFailureConditions are required"),
            (
                json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}),
                "bindingFailureConditions[0]: Invalid value: \"a\"",
            ),
            (policy(json!({"default": "1", "validValues": ["1", "5"]})), ""),
            (policy(json!({"default": "1", "validValues": ["1", "6"]})), "option is larger"),
            (policy(json!({"default": "2", "validValues": ["1"]})), "default value is not valid"),
            (policy(json!({"default": "3", "validRange": {"min": "1", "step": "2"}})), ""),
            (
                policy(json!({"default": "2", "validRange": {"min": "1", "step": "2"}})),
                "value is not a multiple of a given step (2) from (1)",
            ),
            (json!({"capacity": {"m": {"requestPolicy": {}}}}), "must be true"),
        ] {
            let found = device_errors(device.clone());
            match expected {
                "" => assert_eq!(found, [""; 0], "{device}"),
                _ => assert!(found.len() == 1 && found[0].contains(expected), "{found:?}"),
            }
        }
    }

    #[test]
    fn bounds_devices_and_counters() {
        let devices = |count: usize, field: Value| {
            let device = |i: usize| json!({"name": format!("d{i}"), "taints": field});
            json!({"devices": (0..count).map(device).collect::<Vec<_>>()})
        };
        let taints = json!([{"key": "k", "effect": "NoSchedule"}]);
        assert!(errors(&devices(128, Value::Null)).is_empty());
        assert!(errors(&devices(64, taints.clone())).is_empty());
        assert_eq!(
            errors(&devices(65, taints)),
            ["spec.devices: Too many: 65: must have at most 64 items"]
        );
        let large = errors(&devices(100_000, Value::Null));
        assert_eq!(large, ["spec.devices: Too many: 100000: must have at most 128 items"]);
        let counters = json!([{"name": "c", "counters": {"m": {"value": "1"}}}]);
        assert!(errors(&json!({ "sharedCounters": counters })).is_empty());
        let both = errors(&json!({"sharedCounters": counters, "devices": [{"name": "d"}]}));
        assert!(both[0].contains("only one of `sharedCounters` or `devices`"), "{both:?}");
    }

    #[test]
    fn drops_fields_of_disabled_gates() {
        let device = json!({"attributes": {"a": {"ints": [1]}}, "nodeAllocatableResourceMappings": {"cpu": {}}});
        let old = json!({"spec": {"devices": [device]}});
        let mut new = old.clone();
        drop_disabled_fields(&mut new, Some(&old));
        assert_eq!(new, old);
        drop_disabled_fields(&mut new, None);
        assert_eq!(new, json!({"spec": {"devices": [{"attributes": {"a": {}}}]}}));
    }
}
