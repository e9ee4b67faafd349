//! The rights of nodes that announce the addresses of LoadBalancer Services, and the namespace of their Leases.

use serde_json::{Value, json};

use super::network::USER;

/// The namespace of the Leases by which nodes agree on the holder of each address.
pub const NAMESPACE: &str = "windlass-load-balancer";
/// The name of the objects.
const NAME: &str = "windlass:load-balancer";

/// Returns the namespace and the rights. Nodes read Services, and write Leases in their own namespace only, so that
/// they cannot take the lease of another component.
pub fn objects() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    let watch = json!(["get", "list", "watch"]);
    let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": USER}]);
    let within = json!({"name": NAME, "namespace": NAMESPACE});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": NAME},
            "rules": [
                {"apiGroups": [""], "resources": ["services"], "verbs": watch},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": subjects,
        }),
        json!({
            "apiVersion": group, "kind": "Role", "metadata": within,
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "list", "watch", "create", "update", "delete"]}],
        }),
        json!({
            "apiVersion": group, "kind": "RoleBinding", "metadata": within,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": NAME},
            "subjects": subjects,
        }),
    ]
}
