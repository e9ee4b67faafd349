//! Removes fields of Pods whose feature gates are off.

use api_meta::Tree as _;
use serde_json::Value;

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Removes `stopSignal` of containers (gate `ContainerStopSignals`, off in v1.36), unless the old spec has one.
pub(crate) fn drop_from_pod(spec: &mut Value, old: Option<&Value>) {
    const FIELD: &str = "lifecycle.stopSignal";
    let uses = |old: &Value, list: &str| old.items(list).iter().any(|c| c.has(FIELD));
    if old.is_some_and(|old| CONTAINERS.iter().any(|list| uses(old, list))) {
        return;
    }
    for list in CONTAINERS {
        for container in spec.items_mut(list).filter(|container| container.has(FIELD)) {
            container.remove(FIELD);
            if container.blank("lifecycle") {
                container.remove("lifecycle");
            }
        }
    }
}
