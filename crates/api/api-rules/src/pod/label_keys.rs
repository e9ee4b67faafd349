//! Merges `matchLabelKeys` into label selectors when a Pod is created, so that the scheduler needs only the selectors.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

pub(super) fn merge(pod: &mut Value) {
    if pod.blank("spec.topologySpreadConstraints") && pod.blank("spec.affinity") {
        return;
    }
    let labels = pod.at("metadata.labels").as_object().cloned().unwrap_or_default();
    if labels.is_empty() {
        return;
    }
    for constraint in pod.items_mut("spec.topologySpreadConstraints") {
        add(constraint, "matchLabelKeys", "In", &labels);
    }
    for affinity in ["spec.affinity.podAffinity", "spec.affinity.podAntiAffinity"] {
        let required = format!("{affinity}.requiredDuringSchedulingIgnoredDuringExecution");
        for term in pod.items_mut(&required) {
            add_both(term, &labels);
        }
        let preferred = format!("{affinity}.preferredDuringSchedulingIgnoredDuringExecution");
        for weighted in pod.items_mut(&preferred) {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                add_both(term, &labels);
            }
        }
    }
}

fn add_both(term: &mut Value, labels: &Map<String, Value>) {
    add(term, "matchLabelKeys", "In", labels);
    add(term, "mismatchLabelKeys", "NotIn", labels);
}

fn add(term: &mut Value, keys: &str, operator: &str, labels: &Map<String, Value>) {
    if !term.has("labelSelector") {
        return;
    }
    let requirements: Vec<Value> = term
        .items(keys)
        .iter()
        .filter_map(|key| {
            let value = labels.get(key.as_str()?)?;
            Some(json!({"key": key, "operator": operator, "values": [value]}))
        })
        .collect();
    if requirements.is_empty() {
        return;
    }
    let Some(selector) = term.map_mut("labelSelector") else { return };
    if let Value::Array(list) = selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        list.extend(requirements);
    }
}
