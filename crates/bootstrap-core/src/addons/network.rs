//! The Pod network: one Pod on each node that puts the CNI plugin in place, keeps the ways to other nodes and writes
//! the rules of NetworkPolicies.

use api_config::{kubeadm::ClusterConfiguration, kubeconfig::Cluster};
use serde_json::{Value, json};

use super::proxy::kubeconfig;
use crate::{Error, images};

/// The name of its objects in kube-system.
pub const NAME: &str = "windlass-network";
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

/// How packets get from one node's Pods to another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ways {
    /// By plain routes between nodes that share a link, and through a tunnel to all others.
    #[default]
    Shortest,
    /// Always through a tunnel, for networks that carry no packets with Pods' addresses.
    Tunnel,
}

/// The objects of the add-on. `api` is where a node finds the API.
pub fn objects(
    cluster: &ClusterConfiguration,
    api: Cluster,
    ways: Ways,
) -> Result<Vec<Value>, Error> {
    let metadata = json!({"name": NAME, "namespace": "kube-system"});
    let mut objects =
        vec![json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})];
    objects.extend(access());
    objects.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {"kubeconfig.conf": kubeconfig(api).to_yaml()?},
    }));
    objects.push(daemon_set(cluster, ways));
    Ok(objects)
}

fn daemon_set(cluster: &ClusterConfiguration, ways: Ways) -> Value {
    let labels = json!({"k8s-app": NAME});
    let mut command = vec![
        "/usr/local/bin/windlass".to_owned(),
        "network".to_owned(),
        "--kubeconfig=/etc/windlass-network/kubeconfig.conf".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--cluster-cidr={}", cluster.networking.pod_subnet),
        "--host-root=/host".to_owned(),
    ];
    if ways == Ways::Tunnel {
        command.push("--tunnel".to_owned());
    }
    // The plugin runs outside of this Pod, where the runtime starts it: what it needs lies on the host.
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
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "serviceAccountName": NAME,
                    "hostNetwork": true,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    // A node is not ready before its network is.
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "network",
                        "image": images::kubernetes(cluster, "windlass"),
                        "imagePullPolicy": "IfNotPresent",
                        "command": command,
                        "env": [
                            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        ],
                        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
                        "securityContext": {"privileged": true},
                        "volumeMounts": mounts,
                    }],
                    "volumes": volumes,
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, default_cluster};

    fn command(ways: Ways) -> Vec<String> {
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
    fn the_agent_is_told_of_both_families_and_of_the_ways_that_were_chosen() {
        let told = command(Ways::Shortest);
        assert!(told.contains(&"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56".to_owned()));
        assert!(!told.contains(&"--tunnel".to_owned()));
        assert!(command(Ways::Tunnel).contains(&"--tunnel".to_owned()));
    }

    #[test]
    fn the_account_of_the_pods_is_the_one_with_the_rights() {
        let access = access();
        let subjects = access[1]["subjects"].as_array().unwrap();
        assert!(subjects.iter().any(|s| s["kind"] == "ServiceAccount" && s["name"] == NAME));
        assert_eq!(access[1]["roleRef"]["name"], access[0]["metadata"]["name"]);
    }
}
