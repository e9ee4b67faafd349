//! Defaults of Pods that depend on other fields.

use std::collections::HashSet;

use api_meta::Tree as _;
use serde_json::{Value, json};

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Sets the defaults of a Pod.
pub(crate) fn pod(pod: &mut Value) {
    let Some(spec) = pod.at_mut("spec") else { return };
    pod_spec(spec);
    spec.set_default("enableServiceLinks", true);
    let host_network = spec.flag("hostNetwork");
    for list in ["containers", "initContainers"] {
        for container in spec.items_mut(list) {
            requests_from_limits(container);
            if host_network {
                host_ports(container);
            }
        }
    }
    pod_level_requests(spec);
}

/// Sets the defaults of the Pod template at `template` of a workload.
pub(crate) fn template(object: &mut Value) {
    if let Some(spec) = object.at_mut("template.spec") {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Value) {
    mirror_service_account(spec);
    for list in CONTAINERS {
        for container in spec.items_mut(list) {
            if container.blank("imagePullPolicy") {
                let policy = pull_policy(container.text("image"));
                container.set("imagePullPolicy", policy);
            }
        }
    }
    for volume in spec.items_mut("volumes") {
        let sources = volume.as_object().map_or(0, |v| v.keys().filter(|k| *k != "name").count());
        if sources == 0 {
            volume.set("emptyDir", json!({}));
        }
        if volume.has("image") && volume.blank("image.pullPolicy") {
            let policy = pull_policy(volume.text("image.reference"));
            volume.set("image.pullPolicy", policy);
        }
    }
}

/// Returns the default pull policy: `Always` for the tag `latest`.
fn pull_policy(image: &str) -> &'static str {
    match super::image::tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// Sets missing requests of a container to its limits.
fn requests_from_limits(container: &mut Value) {
    let limits: Vec<(String, Value)> =
        container.pairs("resources.limits").map(|(k, v)| (k.clone(), v.clone())).collect();
    if limits.is_empty() {
        return;
    }
    let Some(requests) = container.map_mut("resources.requests") else { return };
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// Sets missing pod-level requests to the pod-level limits, unless a container requests the resource.
fn pod_level_requests(spec: &mut Value) {
    let limits: Vec<(String, Value)> =
        spec.pairs("resources.limits").map(|(k, v)| (k.clone(), v.clone())).collect();
    let containers = CONTAINERS[..2].iter().flat_map(|list| spec.items(list));
    let requested: HashSet<&String> =
        containers.flat_map(|c| c.pairs("resources.requests")).map(|(name, _)| name).collect();
    let missing: Vec<(String, Value)> =
        limits.into_iter().filter(|(name, _)| !requested.contains(name)).collect();
    if missing.is_empty() {
        return;
    }
    let Some(requests) = spec.map_mut("resources.requests") else { return };
    for (name, limit) in missing {
        requests.entry(name).or_insert(limit);
    }
}

fn host_ports(container: &mut Value) {
    for port in container.items_mut("ports") {
        if port.int("hostPort") == 0 {
            let number = port.at("containerPort").clone();
            port.set("hostPort", number);
        }
    }
}

/// Copies between `serviceAccountName` and its deprecated alias `serviceAccount`. Upstream stores both.
fn mirror_service_account(spec: &mut Value) {
    let (name, old) =
        (spec.text("serviceAccountName").to_owned(), spec.text("serviceAccount").to_owned());
    if !name.is_empty() {
        spec.set("serviceAccount", name);
    } else if !old.is_empty() {
        spec.set("serviceAccountName", old);
    }
}
