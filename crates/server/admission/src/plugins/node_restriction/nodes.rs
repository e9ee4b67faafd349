use std::collections::BTreeSet;

use api_meta::{Tree as _, go_quote};
use serde_json::Value;

use super::refusal::Refusal;
use crate::request::Request;

/// The labels of Kubernetes that a kubelet may set on its Node.
const KUBELET_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

pub(super) fn check(request: &Request<'_>, node: &str, object: &Value) -> Result<(), Refusal> {
    let named = if request.name.is_empty() { request.object_name(object) } else { request.name };
    let me = go_quote(node);
    if named != node {
        return Err(format!("node {me} is not allowed to modify node {}", go_quote(named)).into());
    }
    if request.creates() {
        // A kubelet may not choose its own configuration.
        if object.has("spec.configSource") {
            return Err(format!(
                "node {me} is not allowed to create pods with a non-nil configSource"
            )
            .into());
        }
        let forbidden = forbidden_labels(&Value::Null, object);
        if !forbidden.is_empty() {
            return Err(format!(
                "node {me} is not allowed to set the following labels: {forbidden}"
            )
            .into());
        }
    }
    let (true, Some(old)) = (request.updates(), request.old) else { return Ok(()) };
    let config = "spec.configSource";
    if object.has(config) && object.at(config) != old.at(config) {
        return Err(format!(
            "node {me} is not allowed to update configSource to a new non-nil configSource"
        )
        .into());
    }
    if old.items("spec.taints") != object.items("spec.taints") {
        return Err(format!("node {me} is not allowed to modify taints").into());
    }
    let forbidden = forbidden_labels(old, object);
    if !forbidden.is_empty() {
        return Err(format!("is not allowed to modify labels: {forbidden}").into());
    }
    if old.items("metadata.ownerReferences") != object.items("metadata.ownerReferences") {
        return Err(format!("node {me} is not allowed to modify ownerReferences").into());
    }
    Ok(())
}

/// Returns the changed labels that a kubelet may not set.
fn forbidden_labels(old: &Value, new: &Value) -> String {
    let labels = |object: &Value| -> BTreeSet<(String, String)> {
        object
            .pairs("metadata.labels")
            .map(|(k, v)| (k.into(), v.as_str().unwrap_or("").into()))
            .collect()
    };
    let (old, new) = (labels(old), labels(new));
    let changed: BTreeSet<&str> =
        old.symmetric_difference(&new).map(|(key, _)| key.as_str()).collect();
    changed.into_iter().filter(|key| is_forbidden(key)).collect::<Vec<_>>().join(", ")
}

fn is_forbidden(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let within = |parent: &str| {
        domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    (within("kubernetes.io") || within("k8s.io"))
        && !KUBELET_LABELS.contains(&key)
        && !KUBELET_DOMAINS.into_iter().any(within)
}
