//! Rules of Nodes and RuntimeClasses.

use api_meta::{Cidr, ErrorList, FieldError, Path, Tree as _, Warnings, validation};
use serde_json::Value;

use super::status;
use crate::{
    fields::{Rule::Labels, repeats_a_family},
    meta::check_immutable,
    pod::{check_effect, check_toleration, validate_amount, validate_container_resource_name},
    strategy::Strategy,
    warnings,
};

pub(crate) static NODE: Strategy = Strategy {
    storage_path: Some("minions"),
    own_defaults: |node| {
        // The older field wins over the list, whose first item it is.
        let first = node.at("spec.podCIDR").clone();
        if !node.blank("spec.podCIDR") && node.items("spec.podCIDRs").first() != Some(&first) {
            node.set("spec.podCIDRs", vec![first]);
        }
        if node.blank("spec.podCIDR")
            && let Some(first) = node.items("spec.podCIDRs").first().cloned()
        {
            node.set("spec.podCIDR", first);
        }
        if node.blank("status.allocatable") && !node.blank("status.capacity") {
            let capacity = node.at("status.capacity").clone();
            node.set("status.allocatable", capacity);
        }
    },
    status: Some(|| Value::Null),
    status_at_create: true,
    own_create: |node, _| drop_config_source(node, &Value::Null),
    own_update: |new, old, _| drop_config_source(new, old),
    check,
    check_create: |node, errors| {
        // Upstream reports this path, which is not the field's own.
        let path = Path::new("metadata").child("nodeSwapStatus").child("capacity");
        let capacity = node.at("status.nodeInfo.swap.capacity");
        if capacity.as_i64().is_some_and(|bytes| bytes <= 0) {
            errors.push(FieldError::invalid(&path, capacity.clone(), "must be greater than zero"));
        }
    },
    check_update,
    check_status: |new, _, _, errors| status::check_node(new, errors),
    warnings: |node, _| {
        let old = [
            ("spec.configSource", "the feature is removed"),
            ("spec.externalID", "this field is deprecated, and is unused by Kubernetes"),
        ];
        let old = old.into_iter().filter(|(field, _)| !node.blank(field));
        let mut found: Warnings = old.map(|(field, words)| format!("{field}: {words}")).collect();
        for (i, range) in node.items("spec.podCIDRs").iter().enumerate() {
            let path = Path::new("spec").child("podCIDRs").index(i);
            found.extend(warnings::cidr(range.as_str().unwrap_or_default(), &path));
        }
        found
    },
    selectable: &[("spec.unschedulable", |node| node.flag("spec.unschedulable").to_string())],
    ..Strategy::PLAIN
};

/// Removes the field of a feature that upstream has removed, unless the old Node has it.
fn drop_config_source(node: &mut Value, old: &Value) {
    if !old.has("spec.configSource") {
        node.remove("spec.configSource");
    }
}

fn check(node: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let mut seen = std::collections::HashSet::new();
    for (i, taint) in node.items("spec.taints").iter().enumerate() {
        let path = path.child("taints").index(i);
        errors.extend(validation::label_key(taint.text("key"), &path.child("key")));
        for message in validation::label_value(taint.text("value")) {
            errors.push(FieldError::invalid(&path.child("value"), taint.text("value"), message));
        }
        check_effect(taint.text("effect"), false, &path.child("effect"), errors);
        if !seen.insert((taint.text("key"), taint.text("effect"))) {
            let mut error = FieldError::duplicate(&path, taint.clone());
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
    status::check_node_amounts(node, errors);
    let cidrs = node.items("spec.podCIDRs");
    if repeats_a_family(node.texts("spec.podCIDRs")) {
        let detail = "may specify no more than one CIDR for each IP family";
        let found = node.at("spec.podCIDRs").clone();
        errors.push(FieldError::invalid(&path.child("podCIDRs"), found, detail));
    }
    for (i, cidr) in cidrs.iter().enumerate() {
        let text = cidr.as_str().unwrap_or_default();
        if !is_cidr(text) {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.push(FieldError::invalid(&path.child("podCIDRs").index(i), text, detail));
        }
    }
}

pub(super) fn is_cidr(text: &str) -> bool {
    text.parse::<Cidr>().is_ok()
}

fn check_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    for (field, name) in [("spec.podCIDRs", "podCIDRs"), ("spec.providerID", "providerID")] {
        if !old.blank(field) && new.at(field) != old.at(field) {
            let detail = match name {
                "podCIDRs" => "node updates may not change podCIDR except from \"\" to valid",
                _ => "node updates may not change providerID except from \"\" to valid",
            };
            errors.push(FieldError::forbidden(&path.child(name), detail));
        }
    }
}

pub(crate) static RUNTIME_CLASS: Strategy = Strategy {
    check: |class, errors| {
        for message in validation::dns1123_label(class.text("handler")) {
            errors.push(FieldError::invalid(&Path::new("handler"), class.text("handler"), message));
        }
        for (name, value) in class.pairs("overhead.podFixed") {
            let path = Path::new("overhead").child("limits").key(name);
            validate_container_resource_name(name, &path, errors);
            validate_amount(value, name, &path, errors);
        }
        let tolerations = class.items("scheduling.tolerations");
        let mut seen = std::collections::HashSet::new();
        for (i, toleration) in tolerations.iter().enumerate() {
            let path = Path::new("scheduling").child("tolerations").index(i);
            check_toleration(toleration, &path, errors);
            if !seen.insert(toleration) {
                errors.push(FieldError::duplicate(&path, toleration.clone()));
            }
        }
    },
    fields: &[("scheduling.nodeSelector", Labels)],
    check_update: |new, old, errors| check_immutable(new, old, "handler", errors),
    warnings: |class, _| {
        let labels = class.pairs("scheduling.nodeSelector");
        let old = labels.filter_map(|(label, _)| warnings::node_label(label));
        old.map(|words| format!("scheduling.nodeSelector: {words}")).collect()
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};
