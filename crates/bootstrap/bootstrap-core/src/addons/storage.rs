//! The default StorageClass: local volumes of nodes, which the controller manager and the kubelets create and remove.

use serde_json::{Value, json};

/// The service account of the controller.
const ACCOUNT: &str = "local-volume-provisioner";
const ROLE: &str = "windlass:local-volume-provisioner";

/// Returns the class and the rights of its provisioner.
pub fn objects() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    vec![
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": ROLE},
            "rules": [
                {"apiGroups": [""], "resources": ["persistentvolumes"],
                    "verbs": ["create", "delete", "get", "list", "update", "watch"]},
                {"apiGroups": [""], "resources": ["persistentvolumeclaims"],
                    "verbs": ["get", "list", "update", "watch"]},
                {"apiGroups": [""], "resources": ["persistentvolumeclaims/status"],
                    "verbs": ["update"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch", "watch"]},
                {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"],
                    "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"],
                    "verbs": ["create", "patch", "update"]},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": ROLE},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}],
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {
                "name": "local",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "windlass.local/volumes",
            // A volume is on one node, so the Pod must be scheduled first.
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
            "reclaimPolicy": "Delete",
        }),
    ]
}
