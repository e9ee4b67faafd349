//! The DaemonSets of add-ons.

use serde_json::{Value, json};

/// Returns the variable with the name of the Pod's node.
pub(super) fn node_name_variable() -> Value {
    json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
}

/// Returns a DaemonSet with a Pod in the host's network of every Linux node. `pod` has the containers and volumes. The
/// service account has the DaemonSet's name.
pub(super) fn daemon_set(name: &str, namespace: &str, mut pod: Value) -> Value {
    let labels = json!({"k8s-app": name});
    pod["priorityClassName"] = json!("system-node-critical");
    pod["serviceAccountName"] = json!(name);
    pod["hostNetwork"] = json!(true);
    pod["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    // A node is not Ready before its network works.
    pod["tolerations"] = json!([{"operator": "Exists"}]);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}
