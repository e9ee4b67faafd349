//! The initial status of a Pod, and the rules of the status subresource.

use api_meta::{Quantity, Tree as _};
use serde_json::{Value, json};

pub(super) fn initial() -> Value {
    json!({"phase": "Pending"})
}

pub(super) fn on_create(pod: &mut Value) {
    pod.set("status.qosClass", qos(pod.at("spec")));
    if !pod.blank("spec.schedulingGates") {
        pod.set(
            "status.conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null, "lastTransitionTime": null
            }]),
        );
    }
}

pub(super) fn on_status_update(new: &mut Value, old: &Value) {
    new.keep(old, "metadata.ownerReferences");
    new.keep(old, "metadata.deletionTimestamp");
    new.keep(old, "status.qosClass");
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
