//! Clusters and Nodes of the tests of validation.

use api_meta::Tree as _;
use serde_json::{Value, json};

use crate::cloud::{CloudState, GroupState, MachineState};

/// Returns a cluster of a control plane and a worker, with their Nodes.
pub(super) fn seen(nodes: &[Value]) -> CloudState {
    let group = |name: &str, role: &str| {
        let machine = format!("{name}-1");
        let node = nodes.iter().find(|node| node.text("metadata.name") == machine).cloned();
        let machine = MachineState {
            cause: "why".to_owned(),
            id: machine.clone(),
            name: machine,
            node,
            ..MachineState::default()
        };
        GroupState {
            name: name.to_owned(),
            role: role.to_owned(),
            target: 1,
            machines: vec![machine],
            ..GroupState::default()
        }
    };
    let groups = vec![group("cp", "ControlPlane"), group("nodes", "Node")];
    CloudState { groups, missing: Vec::new(), nodes: nodes.to_vec() }
}

pub(super) fn node(name: &str, ready: &str) -> Value {
    let condition = json!({
        "type": "Ready", "status": ready,
        "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
    });
    let metadata = json!({"name": name, "creationTimestamp": "2026-11-23T06:00:00Z"});
    json!({"metadata": metadata, "status": {"conditions": [condition]}})
}
