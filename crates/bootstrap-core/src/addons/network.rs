//! The Pod network's part in the cluster: whom its agents speak as, and what they may read.

use serde_json::{Value, json};

/// The name of its service account and DaemonSet.
const NAME: &str = "windlass-network";
/// As whom an agent speaks that has a certificate in place of a service account.
pub const USER: &str = "windlass:network";

/// The rights that ways to other nodes and the rules of NetworkPolicies are made by: to look, and nothing else.
pub fn access() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    let watch = json!(["get", "list", "watch"]);
    vec![
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": USER},
            "rules": [
                {"apiGroups": [""], "resources": ["namespaces", "nodes", "pods"], "verbs": watch},
                {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": watch},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": USER},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": USER},
            "subjects": [
                {"apiGroup": rbac, "kind": "User", "name": USER},
                {"kind": "ServiceAccount", "name": NAME, "namespace": "kube-system"},
            ],
        }),
    ]
}
