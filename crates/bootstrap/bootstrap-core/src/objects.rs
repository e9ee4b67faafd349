//! Objects that bootstrapping stores in the cluster: its configuration and the RBAC rules around it.

use api_config::{KubeletConfiguration, kubeadm::ClusterConfiguration, yaml};
use api_meta::Tree as _;
use serde_json::{Value, json};

use crate::{
    Error,
    config::document,
    constants::{ADMINS_GROUP, BOOTSTRAPPERS_GROUP, NODES_GROUP},
    hash,
};

const RBAC: &str = "rbac.authorization.k8s.io";

fn cluster_role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": rules})
}

fn cluster_binding(name: &str, role: &str, subjects: Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}, "subjects": subjects,
    })
}

fn binding(namespace: &str, name: &str, role: &str, subjects: Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role}, "subjects": subjects,
    })
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "name": name})
}

/// Returns a role and binding to read one ConfigMap or Secret.
fn readable(
    namespace: &str,
    role_name: &str,
    resource: &str,
    name: &str,
    subjects: Value,
) -> [Value; 2] {
    let rules = json!([{"apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": ["get"]}]);
    [role(namespace, role_name, rules), binding(namespace, role_name, role_name, subjects)]
}

/// Returns the binding of admin.conf's group to cluster-admin.
pub fn cluster_admins() -> Value {
    cluster_binding("kubeadm:cluster-admins", "cluster-admin", json!([group(ADMINS_GROUP)]))
}

/// Returns the binding with which the API server may call kubelets. Its certificate has no privileged group.
pub fn api_server_kubelet_client() -> Value {
    let user = json!([{"kind": "User", "name": "kube-apiserver-kubelet-client"}]);
    cluster_binding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", user)
}

/// Returns the rights of joining nodes: request a certificate, have it signed and renewed, and read Nodes.
pub fn node_bootstrap() -> Vec<Value> {
    let (joining, nodes) = (json!([group(BOOTSTRAPPERS_GROUP)]), json!([group(NODES_GROUP)]));
    let get_nodes = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
    vec![
        cluster_role("kubeadm:get-nodes", get_nodes),
        cluster_binding("kubeadm:get-nodes", "kubeadm:get-nodes", joining.clone()),
        cluster_binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joining.clone()),
        cluster_binding(
            "kubeadm:node-autoapprove-bootstrap",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            joining,
        ),
        cluster_binding(
            "kubeadm:node-autoapprove-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            nodes,
        ),
    ]
}

/// Returns the public access to cluster-info. Joining machines have no identity yet, and the content is signed.
pub fn cluster_info_access() -> [Value; 2] {
    let user = json!([{"kind": "User", "name": "system:anonymous"}]);
    readable(
        "kube-public",
        "kubeadm:bootstrap-signer-clusterinfo",
        "configmaps",
        "cluster-info",
        user,
    )
}

/// Returns the rights around bootstrap tokens: of joining nodes, of everybody to read cluster-info, and of the API
/// server to call the nodes' kubelets.
pub fn token_rights() -> Vec<Value> {
    let mut objects = vec![api_server_kubelet_client()];
    objects.extend(node_bootstrap());
    objects.extend(cluster_info_access());
    objects
}

/// Returns the ConfigMap kubeadm-config and the access to it.
pub fn kubeadm_config(cluster: &ClusterConfiguration) -> Result<Vec<Value>, Error> {
    // Settings of single nodes are not part of it.
    let text = yaml::to_string(&document("ClusterConfiguration", cluster)?)?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
        "data": {"ClusterConfiguration": text},
    });
    let readers = json!([group(BOOTSTRAPPERS_GROUP), group(NODES_GROUP)]);
    let [role, binding] = readable(
        "kube-system",
        "kubeadm:nodes-kubeadm-config",
        "configmaps",
        "kubeadm-config",
        readers,
    );
    Ok(vec![map, role, binding])
}

/// Returns the ConfigMap kubelet-config and the access to it.
pub fn kubelet_config(
    kubelet: &KubeletConfiguration,
    is_custom: bool,
) -> Result<Vec<Value>, Error> {
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubelet-config", "namespace": "kube-system"},
        "data": {"kubelet": yaml::to_string(&kubelet.to_value()?)?},
    });
    hash::mark(&mut map, is_custom);
    let readers = json!([group(NODES_GROUP), group(BOOTSTRAPPERS_GROUP)]);
    let [role, binding] =
        readable("kube-system", "kubeadm:kubelet-config", "configmaps", "kubelet-config", readers);
    Ok(vec![map, role, binding])
}

/// Returns the access of joining control planes to the uploaded certificates, which are encrypted.
pub fn certificates_access() -> [Value; 2] {
    let readers = json!([group(BOOTSTRAPPERS_GROUP)]);
    readable("kube-system", "kubeadm:kubeadm-certs", "secrets", "kubeadm-certs", readers)
}

/// Parses the ConfigMap kubeadm-config of any version.
pub fn read_kubeadm_config(config_map: &Value) -> Result<ClusterConfiguration, Error> {
    let text = config_map.at("data.ClusterConfiguration").as_str().ok_or(Error::NoKubeadmConfig)?;
    crate::config::read(text)?.documents.cluster.ok_or(Error::NoClusterConfiguration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, default_cluster};

    /// Returns the roles and bindings of a cluster.
    fn access() -> Vec<Value> {
        let mut objects = vec![cluster_admins(), api_server_kubelet_client()];
        objects.extend(node_bootstrap());
        objects.extend(cluster_info_access());
        objects.extend(certificates_access());
        objects
    }

    #[test]
    fn uses_kubeadm_object_names() {
        let objects = access();
        let names: std::collections::BTreeSet<_> =
            objects.iter().map(|o| o["metadata"]["name"].as_str().unwrap()).collect();
        let wanted = [
            "kubeadm:apiserver-kubelet-client",
            "kubeadm:bootstrap-signer-clusterinfo",
            "kubeadm:cluster-admins",
            "kubeadm:get-nodes",
            "kubeadm:kubeadm-certs",
            "kubeadm:kubelet-bootstrap",
            "kubeadm:node-autoapprove-bootstrap",
            "kubeadm:node-autoapprove-certificate-rotation",
        ];
        assert_eq!(names.into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn reads_cluster_configuration_back() {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        let objects = kubeadm_config(&cluster).unwrap();
        assert_eq!(read_kubeadm_config(&objects[0]).unwrap(), cluster);
        assert!(read_kubeadm_config(&json!({"data": {}})).is_err());
    }

    /// A `get` of `nodes/proxy` can run commands in all Pods of the node by WebSocket.
    #[test]
    fn grants_nodes_proxy_to_the_api_server_alone() {
        let mut objects = access();
        objects.extend(crate::addons::network::access());
        objects.extend(crate::addons::load_balancer::access());
        objects.extend(crate::addons::storage::objects());
        objects.extend(crate::addons::metrics::objects(([127, 0, 0, 1], 1).into()));
        let texts = |value: &Value| -> Vec<String> {
            let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let rules = objects.iter().flat_map(|o| o["rules"].as_array().into_iter().flatten());
        let resources: Vec<_> = rules.flat_map(|rule| texts(&rule["resources"])).collect();
        assert!(!resources.is_empty());
        let grants = |name: &&String| name.contains('*') || name.ends_with("/proxy");
        assert_eq!(resources.iter().find(grants), None);
        let powerful = ["cluster-admin", "system:kubelet-api-admin"];
        let bound =
            objects.iter().filter(|o| powerful.iter().any(|role| o["roleRef"]["name"] == *role));
        let subjects: Vec<_> = bound.map(|o| o["subjects"][0]["name"].as_str().unwrap()).collect();
        assert_eq!(subjects, [ADMINS_GROUP, "kube-apiserver-kubelet-client"]);
    }
}
