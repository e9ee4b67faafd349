//! The nodes that announce the addresses of LoadBalancer Services: their rights, and their Pods on clusters of `init`.

use api_config::{kubeadm::ClusterConfiguration, kubeconfig::Cluster};
use serde_json::{Value, json};

use super::{
    daemon_set::{daemon_set, node_name_variable},
    network::USER,
    proxy::kubeconfig,
};
use crate::{Error, images};

/// The namespace of the Leases by which nodes agree on the holder of each address, and of the add-on's Pods.
pub const NAMESPACE: &str = "windlass-load-balancer";
/// The directory on a node with the ranges that the add-on announces there.
pub const RECORD: &str = "/run/windlass-load-balancer";
/// The name of the rights.
const NAME: &str = "windlass:load-balancer";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Returns the namespace and the rights of agents of `up`.
pub fn access() -> Vec<Value> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let user = json!({"apiGroup": RBAC, "kind": "User", "name": USER});
    std::iter::once(namespace).chain(rights(&user)).collect()
}

/// Returns the rights. Nodes read Services, and write Leases in their own namespace only, so that they cannot take the
/// lease of another component.
fn rights(subject: &Value) -> Vec<Value> {
    let group = format!("{RBAC}/v1");
    let watch = json!(["get", "list", "watch"]);
    let within = json!({"name": NAME, "namespace": NAMESPACE});
    vec![
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": NAME},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes", "services"], "verbs": watch},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAME},
            "subjects": [subject],
        }),
        json!({
            "apiVersion": group, "kind": "Role", "metadata": within,
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "list", "watch", "create", "update", "delete"]}],
        }),
        json!({
            "apiVersion": group, "kind": "RoleBinding", "metadata": within,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": NAME},
            "subjects": [subject],
        }),
    ]
}

/// Returns the objects of the add-on. `api` is the API endpoint for nodes.
pub fn objects(
    cluster: &ClusterConfiguration,
    api: Cluster,
    ranges: &[String],
) -> Result<Vec<Value>, Error> {
    let metadata = json!({"name": NAMESPACE, "namespace": NAMESPACE});
    let account = json!({"kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE});
    // Pods in the host's network are privileged for the admission plugin PodSecurity.
    let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"kubeconfig.conf": kubeconfig(api).to_yaml()?},
        }),
    ];
    objects.extend(rights(&account));
    objects.push(daemon_set(NAMESPACE, NAMESPACE, pod(cluster, ranges)));
    Ok(objects)
}

fn pod(cluster: &ClusterConfiguration, ranges: &[String]) -> Value {
    let mut command = vec![
        "/usr/local/bin/windlass".to_owned(),
        "load-balancer".to_owned(),
        "run".to_owned(),
        "--kubeconfig=/etc/windlass-load-balancer/kubeconfig.conf".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--ranges={}", ranges.join(",")),
    ];
    if let Some(held) = &cluster.virtual_address {
        command.push(format!("--reserved={}", held.address));
    }
    json!({
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "speaker",
            "image": images::windlass(cluster),
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": [node_name_variable()],
            "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
            },
            "volumeMounts": [
                {"name": "config", "mountPath": "/etc/windlass-load-balancer", "readOnly": true},
                {"name": "record", "mountPath": RECORD},
            ],
        }],
        "volumes": [
            {"name": "config", "configMap": {"name": NAMESPACE}},
            {"name": "record", "hostPath": {"path": RECORD, "type": "DirectoryOrCreate"}},
        ],
    })
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::VirtualAddress;

    use super::*;
    use crate::config::{Facts, default_cluster};

    #[test]
    fn pods_have_few_rights() {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        cluster.virtual_address =
            Some(VirtualAddress { address: "192.0.2.100".to_owned(), ..Default::default() });
        let ranges = ["192.0.2.240/28".to_owned(), "2001:db8::/120".to_owned()];
        let objects = objects(&cluster, Cluster::default(), &ranges).unwrap();
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        let pod = &of("DaemonSet")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let command = container["command"].as_array().unwrap();
        assert!(command.contains(&json!("--ranges=192.0.2.240/28,2001:db8::/120")));
        assert!(command.contains(&json!("--reserved=192.0.2.100")));
        assert!(container["securityContext"].get("privileged").is_none());
        // Writes are limited to Leases of the add-on's namespace, and no Secret can be read.
        for rule in of("ClusterRole")["rules"].as_array().unwrap() {
            assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
            assert!(!rule["resources"].as_array().unwrap().contains(&json!("secrets")));
        }
        assert_eq!(of("Role")["metadata"]["namespace"], NAMESPACE);
        assert_eq!(of("Role")["rules"].as_array().unwrap().len(), 1);
        for binding in ["ClusterRoleBinding", "RoleBinding"] {
            let account =
                json!([{"kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE}]);
            assert_eq!(of(binding)["subjects"], account);
        }
    }
}
