//! Validation of a Pod's placement: node selectors, affinity, tolerations and topology spread.

use std::collections::HashMap;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation, values_error};
use serde_json::Value;

use crate::fields::{validate_label_selector, validate_one_of, validate_optional_one_of};

pub(super) fn check(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let selector = crate::meta::strings(spec.at("nodeSelector"));
    errors.append(&mut validation::labels(&selector, &path.child("nodeSelector")));
    for (i, toleration) in spec.items("tolerations").iter().enumerate() {
        check_toleration(toleration, &path.child("tolerations").index(i), errors);
    }
    fn pair(constraint: &Value) -> (&str, &str) {
        (constraint.text("topologyKey"), constraint.text("whenUnsatisfiable"))
    }
    let constraints = spec.items("topologySpreadConstraints");
    let last: HashMap<(&str, &str), usize> =
        constraints.iter().enumerate().map(|(i, c)| (pair(c), i)).collect();
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.child("topologySpreadConstraints").index(i);
        validate_spread_constraint(constraint, &path, errors);
        let (key, when) = pair(constraint);
        // Upstream reports every duplicate but the last.
        if last.get(&(key, when)) != Some(&i) {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, format!("{{{key}, {when}}}")));
        }
    }
    validate_affinity(spec.at("affinity"), &path.child("affinity"), errors);
}

pub(crate) fn check_toleration(toleration: &Value, path: &Path, errors: &mut ErrorList) {
    let (key, operator) = (toleration.text("key"), toleration.text("operator"));
    if !key.is_empty() {
        errors.extend(validation::label_key(key, &path.child("key")));
    } else if operator != "Exists" {
        errors.push(FieldError::invalid(
            &path.child("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    let value = toleration.text("value");
    match operator {
        "" | "Equal" => {
            for message in validation::label_value(value) {
                errors.push(FieldError::invalid(&path.child("operator"), value, message));
            }
        }
        "Exists" if !value.is_empty() => errors.push(FieldError::invalid(
            &path.child("operator"),
            toleration.clone(),
            "value must be empty when `operator` is 'Exists'",
        )),
        "Exists" => {}
        _ => errors.push(FieldError::not_supported(
            &path.child("operator"),
            operator,
            &["Equal", "Exists"],
        )),
    }
    let effect = toleration.text("effect");
    if toleration.has("tolerationSeconds") && effect != "NoExecute" {
        errors.push(FieldError::invalid(
            &path.child("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
    check_effect(effect, true, &path.child("effect"), errors);
}

/// Validates the effect of a taint, or the effect of a toleration, which is optional.
pub(crate) fn check_effect(effect: &str, optional: bool, path: &Path, errors: &mut ErrorList) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if effect.is_empty() {
        if !optional {
            errors.push(FieldError::required(path, ""));
        }
    } else if !EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(path, effect, &EFFECTS));
    }
}

fn validate_spread_constraint(constraint: &Value, path: &Path, errors: &mut ErrorList) {
    let skew = constraint.int("maxSkew");
    if skew <= 0 {
        errors.push(FieldError::invalid(&path.child("maxSkew"), skew, "must be greater than zero"));
    }
    // Unlike the key of an affinity term, an invalid label key is allowed here. It matches no node.
    if constraint.blank("topologyKey") {
        errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
    }
    for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        validate_optional_one_of(constraint, field, &["Honor", "Ignore"], path, errors);
    }
    validate_one_of(
        constraint,
        "whenUnsatisfiable",
        &["DoNotSchedule", "ScheduleAnyway"],
        path,
        errors,
    );
    if let Some(domains) = constraint.opt_int("minDomains") {
        let path = path.child("minDomains");
        if domains <= 0 {
            errors.push(FieldError::invalid(&path, domains, "must be greater than zero"));
        }
        let when = constraint.text("whenUnsatisfiable");
        if when != "DoNotSchedule" {
            let detail =
                format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
            errors.push(FieldError::invalid(&path, domains, detail));
        }
    }
    validate_label_keys(constraint, "matchLabelKeys", path, errors);
    validate_label_selector(constraint.at("labelSelector"), &path.child("labelSelector"), errors);
}

/// Validates a list of label keys that extend the label selector beside it.
fn validate_label_keys(term: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    let (keys, path) = (term.items(field), path.child(field));
    if !keys.is_empty() && !term.has("labelSelector") {
        let detail = "must not be specified when labelSelector is not set";
        errors.push(FieldError::forbidden(&path, detail));
    }
    for (i, key) in keys.iter().enumerate() {
        let key = key.as_str().unwrap_or_default();
        errors.extend(validation::label_key(key, &path.index(i)));
    }
}

fn validate_topology_key(object: &Value, path: &Path, empty: &str, errors: &mut ErrorList) {
    let (key, path) = (object.text("topologyKey"), path.child("topologyKey"));
    if key.is_empty() {
        errors.push(FieldError::required(&path, empty));
    } else {
        errors.extend(validation::label_key(key, &path));
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates the node affinity of a Pod or of a scheduler's profile.
pub fn check_node_affinity(affinity: &Value, path: &Path, errors: &mut ErrorList) {
    if affinity.has(REQUIRED) {
        validate_node_selector(affinity.at(REQUIRED), &path.child(REQUIRED), errors);
    }
    for (i, term) in affinity.items(PREFERRED).iter().enumerate() {
        let path = path.child(PREFERRED).index(i);
        validate_weight(term, &path, errors);
        validate_node_term(term.at("preference"), false, &path.child("preference"), errors);
    }
}

fn validate_affinity(affinity: &Value, path: &Path, errors: &mut ErrorList) {
    check_node_affinity(affinity.at("nodeAffinity"), &path.child("nodeAffinity"), errors);
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (pods, path) = (affinity.at(kind), path.child(kind));
        for (i, term) in pods.items(REQUIRED).iter().enumerate() {
            validate_pod_term(term, &path.child(REQUIRED).index(i), errors);
        }
        for (i, term) in pods.items(PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            validate_weight(term, &path, errors);
            validate_pod_term(term.at("podAffinityTerm"), &path.child("podAffinityTerm"), errors);
        }
    }
}

fn validate_weight(term: &Value, path: &Path, errors: &mut ErrorList) {
    let weight = term.int("weight");
    if !(1..=100).contains(&weight) {
        let detail = "must be in the range 1-100";
        errors.push(FieldError::invalid(&path.child("weight"), weight, detail));
    }
}

fn validate_pod_term(term: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        validate_label_keys(term, field, path, errors);
    }
    validate_label_selector(term.at("labelSelector"), &path.child("labelSelector"), errors);
    validate_label_selector(term.at("namespaceSelector"), &path.child("namespaceSelector"), errors);
    for (i, namespace) in term.items("namespaces").iter().enumerate() {
        let name = namespace.as_str().unwrap_or_default();
        for message in validation::dns1123_label(name) {
            errors.push(FieldError::invalid(&path.child("namespaces").index(i), name, message));
        }
    }
    validate_topology_key(term, path, "can not be empty", errors);
}

/// Validates the node selector of a node affinity or of a volume.
pub(crate) fn validate_node_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    let (terms, path) = (selector.items("nodeSelectorTerms"), path.child("nodeSelectorTerms"));
    if terms.is_empty() {
        errors.push(FieldError::required(&path, "must have at least one node selector term"));
    }
    for (i, term) in terms.iter().enumerate() {
        validate_node_term(term, true, &path.index(i), errors);
    }
}

/// Validates a term of a node selector. Upstream does not validate the values of a preference as labels.
fn validate_node_term(term: &Value, required: bool, path: &Path, errors: &mut ErrorList) {
    for (i, requirement) in term.items("matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = requirement.items("values");
        let operator = requirement.text("operator");
        errors.extend(values_error(operator, values.is_empty(), &path));
        match operator {
            "Gt" | "Lt" if values.len() != 1 => errors.push(FieldError::required(
                &path.child("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        errors.extend(validation::label_key(requirement.text("key"), &path.child("key")));
        for (j, value) in values.iter().enumerate().filter(|_| required) {
            let value = value.as_str().unwrap_or_default();
            for message in validation::label_value(value) {
                errors.push(FieldError::invalid(&path.child("values").index(j), value, message));
            }
        }
    }
    for (i, requirement) in term.items("matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(i);
        if requirement.text("key") != "metadata.name" {
            errors.push(FieldError::invalid(
                &path.child("key"),
                requirement.text("key"),
                "not a valid field selector key",
            ));
        }
        let operator = requirement.text("operator");
        if !matches!(operator, "In" | "NotIn") {
            let path = path.child("operator");
            errors.push(FieldError::invalid(&path, operator, "not a valid selector operator"));
        } else if requirement.items("values").len() != 1 {
            errors.push(FieldError::required(
                &path.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ));
        }
        for (j, value) in requirement.items("values").iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            for message in validation::dns1123_subdomain(value) {
                errors.push(FieldError::invalid(&path.child("values").index(j), value, message));
            }
        }
    }
}
