//! The initial status of a Pod, and the rules of the status subresource.

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::{Value, json};

use crate::fields::{check_ip, repeats_a_family};

pub(super) fn initial() -> Value {
    json!({"phase": "Pending"})
}

pub(super) fn on_create(pod: &mut Value, now: &str) {
    pod.set("status.qosClass", qos(pod.at("spec")));
    if !pod.blank("spec.schedulingGates") {
        pod.set(
            "status.conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null, "lastTransitionTime": now
            }]),
        );
    }
}

pub(super) fn on_status_update(new: &mut Value, old: &Value) {
    new.keep(old, "metadata.ownerReferences");
    new.keep(old, "metadata.deletionTimestamp");
    if new.blank("status.qosClass") {
        new.keep(old, "status.qosClass");
    }
    match_addresses(new);
}

/// Makes `podIP` the first of `podIPs`. If both are set and differ, the older field `podIP` wins.
fn match_addresses(pod: &mut Value) {
    let first = pod.items("status.podIPs").first().map(|address| address.text("ip").to_owned());
    let one = pod.text("status.podIP").to_owned();
    match first {
        Some(first) if one.is_empty() && !first.is_empty() => pod.set("status.podIP", first),
        first if !one.is_empty() && first.as_ref() != Some(&one) => {
            pod.set("status.podIPs", json!([{"ip": one}]));
        }
        _ => {}
    }
}

/// Validates a new status: its condition types and addresses.
pub(super) fn check(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (status, path) = (new.at("status"), Path::new("status"));
    for (i, condition) in status.items("conditions").iter().enumerate() {
        // Upstream reports the field with this spelling.
        let path = path.child("conditions").index(i).child("Type");
        errors.extend(validation::label_key(condition.text("type"), &path));
    }
    let nominated = status.text("nominatedNodeName");
    if !nominated.is_empty() && nominated != old.text("status.nominatedNodeName") {
        if !new.blank("spec.nodeName") {
            let detail = "may not be set on pods that are already bound to a node";
            errors.push(FieldError::forbidden(&path.child("nominatedNodeName"), detail));
        }
        for message in validation::dns1123_subdomain(nominated) {
            let path = path.child("nominatedNodeName");
            errors.push(FieldError::invalid(&path, nominated, message));
        }
    }
    if status.at("qosClass") != old.at("status.qosClass") {
        let class = status.at("qosClass").clone();
        errors.push(FieldError::invalid(&path.child("qosClass"), class, "field is immutable"));
    }
    let first = status.items("hostIPs").first();
    if first.is_some_and(|first| first.text("ip") != status.text("hostIP")) {
        let (path, ip) = (path.child("hostIPs").index(0).child("ip"), first.map(|f| f.text("ip")));
        errors.push(FieldError::invalid(&path, ip, "must be equal to `hostIP`"));
    }
    for list in ["podIPs", "hostIPs"] {
        let (addresses, path) = (status.items(list), path.child(list));
        // An address that a kubelet of an old release has written stays.
        if addresses == old.at("status").items(list) {
            continue;
        }
        let texts = addresses.iter().map(|address| address.text("ip")).enumerate();
        let valid = texts.filter(|(i, ip)| check_ip(ip, &path.index(*i), errors).is_some());
        if repeats_a_family(valid.map(|(_, ip)| ip)) {
            let detail = "may specify no more than one IP for each IP family";
            let shown: Vec<_> = addresses.iter().map(|a| json!({"IP": a.text("ip")})).collect();
            errors.push(FieldError::invalid(&path, shown, detail));
        }
    }
}

/// Returns the QoS class, which decides the order of eviction. `Guaranteed` if the CPU and memory limits of every
/// container are set and equal its requests, `BestEffort` if none has requests or limits, else `Burstable`.
fn qos(spec: &Value) -> &'static str {
    const COUNTED: [&str; 2] = ["cpu", "memory"];
    let amount = |holder: &Value, of: &str, name: &str| {
        let text = holder.at("resources").at(of).get(name)?.as_str()?;
        Quantity::parse(text).ok().filter(|q| !q.is_zero())
    };
    let pod_level = COUNTED.iter().any(|name| {
        amount(spec, "requests", name).is_some() || amount(spec, "limits", name).is_some()
    });
    let holders: Vec<&Value> = if pod_level {
        vec![spec]
    } else {
        spec.items("containers").iter().chain(spec.items("initContainers")).collect()
    };
    let (mut has_resources, mut guaranteed) = (false, true);
    for holder in holders {
        for name in COUNTED {
            let (request, limit) =
                (amount(holder, "requests", name), amount(holder, "limits", name));
            has_resources |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (has_resources, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
