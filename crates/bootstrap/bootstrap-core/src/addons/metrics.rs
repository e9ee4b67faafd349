//! The Metrics API under `windlass up`: the rights of its server, and its Service and APIService.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// The user as which the metrics server calls the API server and the kubelets.
pub const USER: &str = "windlass:metrics-server";
/// The Service. The name differs from metrics-server's, so that its manifest can be applied too.
const NAME: &str = "windlass-metrics";
const NAMESPACE: &str = "kube-system";

/// Returns upstream's rights of metrics-server, the role of its readers, and the Service with its endpoint.
pub fn objects(address: SocketAddr) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    let watch = json!(["get", "list", "watch"]);
    let port =
        json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": address.port()});
    let endpoint = json!({"name": "https", "port": address.port(), "protocol": "TCP"});
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    vec![
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": USER},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": watch},
                {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"],
                    "verbs": ["create"]},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": USER},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": USER},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRole",
            "metadata": {
                "name": "system:aggregated-metrics-reader",
                "labels": {
                    "rbac.authorization.k8s.io/aggregate-to-view": "true",
                    "rbac.authorization.k8s.io/aggregate-to-edit": "true",
                    "rbac.authorization.k8s.io/aggregate-to-admin": "true",
                },
            },
            "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": watch}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"ports": [port]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": NAME, "namespace": NAMESPACE,
                "labels": {
                    "kubernetes.io/service-name": NAME,
                    "endpointslice.kubernetes.io/managed-by": "windlass",
                },
            },
            "addressType": family,
            "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
            "ports": [endpoint],
        }),
    ]
}

/// Returns the APIService, which is created once and never changed, so that metrics-server's manifest can take it over.
/// Like upstream's, it names no CA, which the API server rejects together with `insecureSkipTLSVerify`.
pub fn api_service() -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1",
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": {"name": NAME, "namespace": NAMESPACE},
        },
    })
}
