//! The add-ons that a cluster has: their manifests, and the channel that lists them.

use api_config::kubeconfig::Cluster as Server;
use bootstrap_core::{
    addons::{self, network::Ways},
    objects,
};
use data_encoding::HEXLOWER;
use kops_api::{Object, yaml};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    Error,
    controller::USER,
    model::{API_PORT, Shape},
};

const CHANNEL: &str = "addons/bootstrap-channel.yaml";
/// kOps' own: its users tell by the hash whether something changed.
const VERSION: &str = "9.99.0";

/// The objects of the store: names and contents.
pub(crate) fn all(cluster: &Object) -> Result<Vec<(String, String)>, Error> {
    let shape = Shape::of(cluster);
    let init = shape.init(None);
    // Pods have the authority where their service account is.
    let api =
        || Server { server: format!("https://{}:{API_PORT}", shape.api()), ..Server::default() };
    let mut core = controller_access();
    core.push(objects::cluster_admins());
    core.push(objects::api_server_kubelet_client());
    core.extend(objects::node_bootstrap());
    let sets = [
        ("kops-controller.addons.k8s.io", "k8s-1.16", core),
        (
            "network.windlass.local",
            "k8s-1.36",
            addons::network::objects(&init.cluster, api(), Ways::Shortest)?,
        ),
        (
            "kube-proxy.addons.k8s.io",
            "k8s-1.36",
            addons::kube_proxy(&init.cluster, &init.proxy, false, api(), &[])?,
        ),
        ("coredns.addons.k8s.io", "k8s-1.12", addons::coredns(&init.cluster, 2)?),
        ("storage.windlass.local", "k8s-1.36", addons::storage::objects()),
    ];
    let mut kept = Vec::new();
    let mut listed = Vec::new();
    for (name, id, objects) in sets {
        let text: Vec<String> = objects.iter().map(yaml::to_string).collect();
        let text = text.join("---\n");
        let sum = Sha256::digest(text.as_bytes());
        let hash = HEXLOWER.encode(&sum);
        listed.push(json!({
            "name": name, "id": id, "manifest": format!("{name}/{id}.yaml"), "manifestHash": hash,
            "selector": {"k8s-addon": name}, "version": VERSION,
        }));
        kept.push((format!("addons/{name}/{id}.yaml"), text));
    }
    let channel = json!({
        "kind": "Addons", "metadata": {"creationTimestamp": Value::Null, "name": "bootstrap"},
        "spec": {"addons": listed},
    });
    kept.push((CHANNEL.to_owned(), yaml::to_string(&channel)));
    Ok(kept)
}

/// kops-controller tells machines that run from those that start, and labels Nodes. It may nothing else.
fn controller_access() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let group = format!("{rbac}/v1");
    vec![
        json!({
            "apiVersion": group, "kind": "ClusterRole", "metadata": {"name": USER},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}],
        }),
        json!({
            "apiVersion": group, "kind": "ClusterRoleBinding", "metadata": {"name": USER},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": USER},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}],
        }),
    ]
}
