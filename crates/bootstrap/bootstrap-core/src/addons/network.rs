//! The Pod network: one Pod per node that installs the CNI plugin, maintains routes to other nodes and writes the rules
//! of NetworkPolicies.

use api_config::{kubeadm::ClusterConfiguration, kubeconfig::Cluster};
use serde_json::{Value, json};

use super::{
    daemon_set::{daemon_set, node_name_variable},
    proxy::kubeconfig,
};
use crate::{Error, images};

/// The name of the add-on's objects in kube-system.
pub const NAME: &str = "windlass-network";
/// The user of an agent with a client certificate instead of a service account.
pub const USER: &str = "windlass:network";

/// Returns the read-only rights of the agents.
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

/// The routing between the Pods of different nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutingMode {
    /// Plain routes between nodes on one link, and a tunnel to all others.
    #[default]
    Shortest,
    /// A tunnel to every node, for networks that drop packets with Pod addresses.
    Tunnel,
}

/// Returns the objects of the add-on. `api` is the API endpoint for nodes.
pub fn objects(
    cluster: &ClusterConfiguration,
    api: Cluster,
    ways: RoutingMode,
) -> Result<Vec<Value>, Error> {
    let metadata = json!({"name": NAME, "namespace": "kube-system"});
    let mut objects =
        vec![json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})];
    objects.extend(access());
    objects.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {"kubeconfig.conf": kubeconfig(api).to_yaml()?},
    }));
    objects.push(daemon_set(NAME, "kube-system", pod(cluster, ways)));
    Ok(objects)
}

fn pod(cluster: &ClusterConfiguration, ways: RoutingMode) -> Value {
    let mut command = vec![
        "/usr/local/bin/windlass".to_owned(),
        "network".to_owned(),
        "run".to_owned(),
        "--kubeconfig=/etc/windlass-network/kubeconfig.conf".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--cluster-cidr={}", cluster.networking.pod_subnet),
        "--host-root=/host".to_owned(),
    ];
    if ways == RoutingMode::Tunnel {
        command.push("--tunnel".to_owned());
    }
    // The runtime starts the plugin outside of this Pod, so the plugin's files are on the host.
    let places = [
        ("cni-conf", "/etc/cni/net.d"),
        ("cni-bin", "/opt/cni/bin"),
        ("cni-leases", "/var/lib/cni"),
    ];
    let mut volumes: Vec<Value> = places
        .iter()
        .map(|(name, path)| {
            json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})
        })
        .collect();
    let mut mounts: Vec<Value> = places
        .iter()
        .map(|(name, path)| json!({"name": name, "mountPath": format!("/host{path}")}))
        .collect();
    volumes.push(json!({"name": "config", "configMap": {"name": NAME}}));
    mounts.push(json!({"name": "config", "mountPath": "/etc/windlass-network", "readOnly": true}));
    json!({
        "containers": [{
            "name": "network",
            "image": images::windlass(cluster),
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": [node_name_variable()],
            "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
            "securityContext": {"privileged": true},
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, default_cluster};

    fn command(ways: RoutingMode) -> Vec<String> {
        let mut cluster = ClusterConfiguration::default();
        cluster.networking.pod_subnet = "10.244.0.0/16,fd00:10:244::/56".to_owned();
        default_cluster(&mut cluster, &Facts::default());
        let objects = objects(&cluster, Cluster::default(), ways).unwrap();
        let daemon_set = objects.iter().find(|o| o["kind"] == "DaemonSet").unwrap();
        let pod = &daemon_set["spec"]["template"]["spec"];
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let volumes = pod["volumes"].as_array().unwrap();
        assert!(mounts.iter().all(|m| volumes.iter().any(|v| v["name"] == m["name"])));
        serde_json::from_value(pod["containers"][0]["command"].clone()).unwrap()
    }

    #[test]
    fn passes_cidrs_and_routing_mode_to_agent() {
        let told = command(RoutingMode::Shortest);
        assert!(told.contains(&"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56".to_owned()));
        assert!(!told.contains(&"--tunnel".to_owned()));
        assert!(command(RoutingMode::Tunnel).contains(&"--tunnel".to_owned()));
    }

    #[test]
    fn binds_role_to_service_account() {
        let access = access();
        let subjects = access[1]["subjects"].as_array().unwrap();
        assert!(subjects.iter().any(|s| s["kind"] == "ServiceAccount" && s["name"] == NAME));
        assert_eq!(access[1]["roleRef"]["name"], access[0]["metadata"]["name"]);
    }
}
