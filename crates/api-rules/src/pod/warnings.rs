//! What is allowed in a Pod but deserves a warning.

use std::collections::HashMap;

use api_meta::{Path, Quantity};
use serde_json::Value;

use crate::look::Look;

/// Labels of nodes that have newer names, with the release that renamed them.
const OLD_LABELS: [(&str, &str, &str); 5] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
];

/// The warnings for a Pod's specification at `path`.
pub(super) fn of(spec: &Value, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    for (label, _) in spec.pairs("nodeSelector") {
        if let Some((_, since, new)) = OLD_LABELS.iter().find(|(old, ..)| old == label) {
            let path = path.child("nodeSelector").key(label);
            warnings.push(format!("{path}: deprecated since {since}; use {new:?} instead"));
        }
    }
    for (i, volume) in spec.items("volumes").iter().enumerate() {
        if volume.has("gitRepo") {
            let path = path.child("volumes").index(i).child("gitRepo");
            warnings.push(format!("{path}: deprecated in v1.11"));
        }
    }
    for (i, secret) in spec.items("imagePullSecrets").iter().enumerate() {
        if secret.blank("name") {
            let path = path.child("imagePullSecrets").index(i).child("name");
            warnings.push(format!("{path}: invalid empty name \"\""));
        }
    }
    if spec.int("terminationGracePeriodSeconds") < 0 {
        let path = path.child("terminationGracePeriodSeconds");
        warnings.push(format!(
            "{path}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    for list in ["initContainers", "containers"] {
        for (i, container) in spec.items(list).iter().enumerate() {
            of_container(container, &path.child(list).index(i), &mut warnings);
        }
    }
    warnings
}

fn of_container(container: &Value, path: &Path, warnings: &mut Vec<String>) {
    for amounts in ["limits", "requests"] {
        for (name, amount) in container.at("resources").pairs(amounts) {
            let fractional = amount.as_str().and_then(|text| Quantity::parse(text).ok());
            let fractional = fractional.is_some_and(|q| !q.is_integer());
            if matches!(name.as_str(), "memory" | "ephemeral-storage") && fractional {
                let path = path.child("resources").child(amounts).key(name);
                warnings.push(format!(
                    "{path}: fractional byte value {amount} is invalid, must be an integer"
                ));
            }
        }
    }
    let mut names = std::collections::HashSet::new();
    for (i, variable) in container.items("env").iter().enumerate() {
        let name = variable.text("name");
        if !names.insert(name) {
            let path = path.child("env").index(i);
            warnings.push(format!(
                "{path}: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
    let mut ports = HashMap::new();
    for (i, port) in container.items("ports").iter().enumerate() {
        let path = path.child("ports").index(i);
        let key = (
            port.int("containerPort"),
            port.text("protocol"),
            port.text("hostIP"),
            port.int("hostPort"),
        );
        if let Some(first) = ports.insert(key, path.clone()) {
            warnings.push(format!("{path}: duplicate port definition with {first}"));
        }
    }
}

/// A name with dots is no good host name.
pub(super) fn of_host_name(object: &Value) -> Vec<String> {
    let messages = api_meta::validation::dns1123_label(object.text("metadata.name"));
    match messages.is_empty() || object.blank("metadata.name") {
        true => Vec::new(),
        false => vec![format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
            messages.join(" ")
        )],
    }
}
