//! Completes an instance group for a complete cluster: sizes, image, machine type and the kubelet's configuration.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use kops_api::{Object, validate_group};
use serde_json::{Map, Value, json};

use crate::{
    channel::Channel,
    cluster::{CloudName, Cluster},
    complete::overlay,
    create::complete_machines,
    error::Error,
    world::World,
};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const API_SERVER: &str = "node-role.kubernetes.io/api-server";
const NODE: &str = "node-role.kubernetes.io/node";

/// Completes a group of a complete cluster.
pub fn complete_group(
    cluster: &Object,
    group: &Object,
    channel: &Channel,
    world: &World,
) -> Result<Object, Error> {
    let mut group = group.normalized();
    let role = group.spec.text("role").to_owned();
    complete_machines(cluster, &mut group, "", channel, world)?;
    let size = if ["ControlPlane", "Bastion"].contains(&role.as_str()) { 1 } else { 2 };
    if group.spec.text("manager") != "Karpenter" {
        for field in ["minSize", "maxSize"]
            .iter()
            .filter(|f| group.spec.opt_int(f).is_none())
            .collect::<Vec<_>>()
        {
            group.spec.put(field, size);
        }
    }
    accelerate(cluster, &mut group, world);
    group.spec.put_default("manager", "CloudGroup");
    let kubelet = kubelet(cluster, &group, &role, world.api_server_nodes);
    group.spec.put("kubelet", kubelet);
    let problems = validate_group(&group, Some(cluster));
    if !problems.is_empty() {
        let what = format!("instance group {}", group.name());
        return Err(kops_api::Error::Fields { what, problems: problems.into() }.into());
    }
    Ok(group)
}

fn label(group: &mut Object, key: &str, value: &str) {
    let mut labels = group.spec.at("nodeLabels").as_object().cloned().unwrap_or_default();
    labels.insert(key.to_owned(), value.into());
    group.spec.put("nodeLabels", labels);
}

/// Labels and taints machines with a GPU, so that only Pods that request one run there.
fn accelerate(cluster: &Object, group: &mut Object, world: &World) {
    let nvidia = |object: &Object| object.spec.flag("containerd.nvidiaGPU.enabled");
    let gpu = world.machine_types.get(group.spec.text("machineType")).is_some_and(|m| m.gpu);
    if cluster.cloud() == CloudName::Aws && gpu && (nvidia(cluster) || nvidia(group)) {
        label(group, "kops.k8s.io/gpu", "1");
        let mut taints = group.spec.items("taints").to_vec();
        if !group.spec.texts("taints").any(|taint| taint.starts_with("nvidia.com/gpu")) {
            taints.push("nvidia.com/gpu:NoSchedule".into());
            group.spec.put("taints", taints);
        }
    }
    if group.spec.flag("containerd.gvisor.enabled") {
        label(group, "kops.k8s.io/gvisor", "1");
    }
}

/// Returns the kubelet's configuration: the cluster's for the role, overridden by the group's. Taints of all are
/// merged.
fn kubelet(cluster: &Object, group: &Object, role: &str, api_server_nodes: bool) -> Value {
    let own = group.spec.get("kubelet").cloned().unwrap_or(Value::Null);
    let base = if role == "ControlPlane" { "controlPlaneKubelet" } else { "kubelet" };
    let mut kubelet = cluster.spec.get(base).cloned().unwrap_or_else(|| json!({}));
    if cluster.spec.opt_flag("kubelet.anonymousAuth") == Some(false) && role == "ControlPlane" {
        kubelet.put("anonymousAuth", false);
    }
    let taints = kubelet.texts("taints").chain(group.spec.texts("taints"));
    let taints = taints.chain(own.texts("taints")).chain(cluster.spec.texts("kubelet.taints"));
    let mut taints: BTreeSet<String> = taints.map(str::to_owned).collect();
    let mut labels = kubelet.at("nodeLabels").as_object().cloned().unwrap_or_default();
    labels.extend(own.at("nodeLabels").as_object().cloned().unwrap_or_default());
    labels.extend(role_labels(role));
    if role == "ControlPlane" && api_server_nodes {
        labels.insert(API_SERVER.to_owned(), "".into());
    }
    labels.extend(group.spec.at("nodeLabels").as_object().cloned().unwrap_or_default());
    let secure = kubelet.flag("anonymousAuth");
    overlay(&mut kubelet, &own);
    match role {
        "ControlPlane" => drop(taints.insert(format!("{CONTROL_PLANE}=:NoSchedule"))),
        "APIServer" => drop(taints.insert(format!("{API_SERVER}=:NoSchedule"))),
        _ => {}
    }
    if group.spec.text("manager") == "Karpenter" {
        taints.insert("karpenter.sh/unregistered=:NoExecute".to_owned());
    }
    if secure {
        kubelet.put("anonymousAuth", false);
    }
    kubelet.remove("nodeLabels");
    if !labels.is_empty() {
        kubelet.put("nodeLabels", labels);
    }
    kubelet.remove("taints");
    if !taints.is_empty() {
        kubelet.put("taints", taints.into_iter().collect::<Vec<_>>());
    }
    kubelet
}

fn role_labels(role: &str) -> Map<String, Value> {
    let keys: &[&str] = match role {
        "ControlPlane" => &[
            CONTROL_PLANE,
            "kops.k8s.io/kops-controller-pki",
            "node.kubernetes.io/exclude-from-external-load-balancers",
        ],
        "APIServer" => &[API_SERVER],
        "Node" => &[NODE],
        _ => &[],
    };
    keys.iter().map(|key| ((*key).to_owned(), "".into())).collect()
}
