//! What an object counts for.

use std::collections::BTreeMap;

use api_meta::{GroupResource, Quantity, QuantityFormat};
use serde_json::Value;

use super::told_missing;
use crate::{
    Request,
    resources::{Overhead, pod_total},
    tree::{Amounts, annotation, flag, integer, is_set, items, quantity, text},
};

/// Whether an update of this resource can change what it counts for.
pub(super) fn changes_by_update(request: &Request<'_>) -> bool {
    request.is_sub(&GroupResource::PODS, "resize")
        || request.is(&GroupResource::PERSISTENT_VOLUME_CLAIMS)
        || request.is(&GroupResource::SERVICES)
}

fn count(n: i64) -> Quantity {
    Quantity::new(n, QuantityFormat::DecimalSi)
}

/// Everything that an object counts for; which of it matters the quota says.
pub(super) fn of(request: &Request<'_>, object: &Value) -> Amounts {
    let resource = request.resource.group_resource();
    let mut usage = Amounts::from([(format!("count/{resource}"), count(1))]);
    // Names from before counts had one.
    let by_name = [
        "configmaps",
        "secrets",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "persistentvolumeclaims",
        "pods",
    ];
    if resource.group.is_empty() && by_name.contains(&resource.resource.as_ref()) {
        usage.insert(resource.resource.to_string(), count(1));
    }
    if resource == GroupResource::PODS {
        pod(object, &mut usage);
    } else if resource == GroupResource::SERVICES {
        service(object, &mut usage);
    } else if resource == GroupResource::PERSISTENT_VOLUME_CLAIMS {
        claim(object, &mut usage);
    }
    usage
}

fn pod(pod: &Value, usage: &mut Amounts) {
    if ["Succeeded", "Failed"].contains(&text(pod, "/status/phase")) {
        usage.remove("pods");
        return;
    }
    for (resource, amount) in pod_total(pod, "requests", Overhead::Counted) {
        if ["cpu", "memory", "ephemeral-storage"].contains(&resource.as_str())
            || resource.starts_with("hugepages-")
        {
            usage.insert(resource.clone(), amount);
        }
        usage.insert(format!("requests.{resource}"), amount);
    }
    for (resource, amount) in pod_total(pod, "limits", Overhead::Counted) {
        usage.insert(format!("limits.{resource}"), amount);
    }
}

fn service(service: &Value, usage: &mut Amounts) {
    let ports = items(service, "/spec/ports").count() as i64;
    match text(service, "/spec/type") {
        "NodePort" => drop(usage.insert("services.nodeports".into(), count(ports))),
        "LoadBalancer" => {
            usage.insert("services.loadbalancers".into(), count(1));
            let node_ports = match flag(service, "/spec/allocateLoadBalancerNodePorts") {
                // Some may have been asked for all the same.
                Some(false) => {
                    let asked = items(service, "/spec/ports")
                        .filter(|p| integer(p, "/nodePort").unwrap_or(0) != 0);
                    asked.count() as i64
                }
                _ => ports,
            };
            usage.insert("services.nodeports".into(), count(node_ports));
        }
        _ => {}
    }
}

fn claim(claim: &Value, usage: &mut Amounts) {
    let class = annotation(claim, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| text(claim, "/spec/storageClassName"));
    let asked = claim.pointer("/spec/resources/requests/storage").and_then(quantity);
    let mut add = |name: &str, amount| {
        usage.insert(name.to_owned(), amount);
        if !class.is_empty() {
            usage.insert(format!("{class}.storageclass.storage.k8s.io/{name}"), amount);
        }
    };
    add("persistentvolumeclaims", count(1));
    if let Some(asked) = asked {
        // A claim that is being grown counts for the most of what it asked for and was given.
        let given = claim.pointer("/status/allocatedResources/storage").and_then(quantity);
        add("requests.storage", given.map_or(asked, |given| given.max(asked)));
    }
}

/// A quota on what Pods request or are limited to makes every container say it: what is unsaid could not be counted.
pub(super) fn check_stated(
    request: &Request<'_>,
    pod: &Value,
    hard: &Amounts,
) -> Result<(), String> {
    if !request.on(&GroupResource::PODS) {
        return Ok(());
    }
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in hard.keys() {
        let (field, resource) = match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => ("requests", name.as_str()),
            name => match name.split_once('.') {
                Some((
                    field @ ("requests" | "limits"),
                    resource @ ("cpu" | "memory" | "ephemeral-storage"),
                )) => (field, resource),
                _ => continue,
            },
        };
        let stated = |holder: &Value| is_set(holder, &format!("/resources/{field}/{resource}"));
        // Ephemeral storage was never made a duty.
        if resource == "ephemeral-storage" || stated(&pod["spec"]) {
            continue;
        }
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in items(pod, list).filter(|container| !stated(container)) {
                missing.entry(name).or_default().push(text(container, "/name").to_owned());
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(told_missing(&missing)) }
}
