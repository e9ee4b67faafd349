//! Converts v1beta3 documents to v1beta4.

use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Converts a v1beta3 object in place. Returns the API server's timeout, which v1beta4 moved from the cluster's
/// configuration to the node's.
pub(super) fn from_v1beta3(kind: &str, object: &mut Object) -> Option<Value> {
    match kind {
        "ClusterConfiguration" => {
            for component in ["apiServer", "controllerManager", "scheduler"] {
                list_args(object.get_mut(component), "extraArgs");
            }
            list_args(object.get_mut("etcd").and_then(|e| e.get_mut("local")), "extraArgs");
            let api_server = object.get_mut("apiServer").and_then(Value::as_object_mut)?;
            api_server.remove("timeoutForControlPlane")
        }
        "InitConfiguration" => {
            list_args(object.get_mut("nodeRegistration"), "kubeletExtraArgs");
            None
        }
        "JoinConfiguration" => {
            list_args(object.get_mut("nodeRegistration"), "kubeletExtraArgs");
            if let Some(timeout) = object
                .get_mut("discovery")
                .and_then(Value::as_object_mut)
                .and_then(|d| d.remove("timeout"))
            {
                let timeouts = object.entry("timeouts").or_insert_with(|| json!({}));
                timeouts["discovery"] = timeout;
            }
            None
        }
        _ => None,
    }
}

/// Converts a map of arguments to the list of v1beta4, sorted by name.
fn list_args(holder: Option<&mut Value>, field: &str) {
    if let Some(args) = holder.and_then(|h| h.get_mut(field))
        && let Some(map) = args.as_object()
    {
        *args = map.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    }
}
