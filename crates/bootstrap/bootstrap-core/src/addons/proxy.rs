//! The add-on kube-proxy.

use api_config::{
    KubeProxyConfiguration, Kubeconfig,
    kubeadm::ClusterConfiguration,
    kubeconfig::{Cluster, Context, NamedCluster, NamedContext, NamedUser, User},
    yaml,
};
use serde_json::{Value, json};

use super::daemon_set::{daemon_set, node_name_variable};
use crate::{Error, constants::BOOTSTRAPPERS_GROUP, hash, images};

/// Returns the objects of the kube-proxy add-on. `api` is the API endpoint for nodes.
pub fn objects(
    cluster: &ClusterConfiguration,
    proxy: &KubeProxyConfiguration,
    is_custom: bool,
    api: Cluster,
    proxy_env: &[(String, String)],
) -> Result<Vec<Value>, Error> {
    let config = yaml::to_string(&proxy.to_value()?)?;
    let mut config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": {"app": "kube-proxy"}},
        "data": {"kubeconfig.conf": kubeconfig(api).to_yaml()?, "config.conf": config},
    });
    hash::mark(&mut config_map, is_custom);
    let mut objects = access();
    objects.push(config_map);
    let image = images::kubernetes(cluster, "kube-proxy");
    objects.push(daemon_set("kube-proxy", "kube-system", pod(&image, proxy_env)));
    Ok(objects)
}

/// Returns a kubeconfig with the credentials of the Pod's service account.
pub(super) fn kubeconfig(api: Cluster) -> Kubeconfig {
    let account = |file: &str| format!("/var/run/secrets/kubernetes.io/serviceaccount/{file}");
    let name = || "default".to_owned();
    let cluster = Cluster { certificate_authority: account("ca.crt"), ..api };
    let context =
        Context { cluster: name(), user: name(), namespace: name(), ..Default::default() };
    let user = User { token_file: account("token"), ..Default::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name(), cluster }],
        contexts: vec![NamedContext { name: name(), context }],
        users: vec![NamedUser { name: name(), user }],
        current_context: name(),
        ..Kubeconfig::default()
    }
}

fn access() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    let metadata = json!({"name": "kube-proxy", "namespace": "kube-system"});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": "kubeadm:node-proxier"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:node-proxier"},
            "subjects": [{"kind": "ServiceAccount", "name": "kube-proxy", "namespace": "kube-system"}],
        }),
        json!({
            "apiVersion": group, "kind": "Role", "metadata": metadata,
            "rules": [
                {"apiGroups": [""], "resourceNames": ["kube-proxy"], "resources": ["configmaps"], "verbs": ["get"]},
            ],
        }),
        json!({
            "apiVersion": group, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "kube-proxy"},
            "subjects": [{"kind": "Group", "name": BOOTSTRAPPERS_GROUP}],
        }),
    ]
}

fn pod(image: &str, proxy_env: &[(String, String)]) -> Value {
    let mut env = vec![node_name_variable()];
    env.extend(proxy_env.iter().map(|(name, value)| json!({"name": name, "value": value})));
    json!({
        "containers": [{
            "name": "kube-proxy",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": [
                "/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf",
                "--hostname-override=$(NODE_NAME)",
            ],
            "securityContext": {"privileged": true},
            "volumeMounts": [
                {"mountPath": "/var/lib/kube-proxy", "name": "kube-proxy"},
                {"mountPath": "/run/xtables.lock", "name": "xtables-lock", "readOnly": false},
                {"mountPath": "/lib/modules", "name": "lib-modules", "readOnly": true},
            ],
            "env": env,
        }],
        "volumes": [
            {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
            {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
            {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
        ],
    })
}
