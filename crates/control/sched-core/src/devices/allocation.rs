//! Builds the allocation in a claim's status from the devices that were found.

use serde_json::{Value, json};

use crate::{
    devices::{
        capacity::Amounts,
        requests::{Alternative, PendingClaim},
        slices::{Device, Nodes, Pool, Slice},
        view::{AllocatedDevice, AllocatedDevices, Allocation, DeviceConfigView},
    },
    node::Node,
};

/// A device that was found for a request.
pub(super) struct ChosenDevice<'a> {
    pub(super) request: usize,
    pub(super) alternative: &'a Alternative<'a>,
    pub(super) pool: &'a Pool,
    pub(super) slice: &'a Slice,
    pub(super) device: &'a Device,
    pub(super) amounts: Option<&'a Amounts>,
}

pub(super) fn build(
    pending: &PendingClaim<'_>,
    chosen: &[ChosenDevice<'_>],
    node: &Node,
) -> Allocation {
    let results = chosen.iter().map(|chosen| AllocatedDevice {
        request: chosen.alternative.name.clone(),
        driver: chosen.pool.id.0.clone(),
        pool: chosen.pool.id.1.clone(),
        device: chosen.device.view.name.clone(),
        admin_access: chosen.alternative.admin.then_some(true),
        tolerations: chosen.alternative.view.tolerations.clone(),
        binding_conditions: chosen.device.view.binding_conditions.clone(),
        binding_failure_conditions: chosen.device.view.binding_failure_conditions.clone(),
        share_id: chosen.amounts.is_some().then(Box::default),
        consumed_capacity: chosen.amounts.cloned().unwrap_or_default(),
    });
    let devices = AllocatedDevices { results: results.collect(), config: config(pending, chosen) };
    Allocation { devices, node_selector: nodes(chosen, node), allocation_timestamp: None }
}

/// Returns the configuration of the classes, once for each class, and of the claim, for the chosen devices.
fn config(pending: &PendingClaim<'_>, chosen: &[ChosenDevice<'_>]) -> Vec<DeviceConfigView> {
    let mut out: Vec<DeviceConfigView> = Vec::new();
    let picked = |request: usize| {
        chosen.iter().find(|chosen| chosen.request == request).map(|chosen| chosen.alternative)
    };
    let picked: Vec<_> =
        (0..pending.requests.len()).filter_map(|at| Some((at, picked(at)?))).collect();
    let mut classes: Vec<&str> = Vec::new();
    for (_, first) in &picked {
        let name = &*first.view.device_class_name;
        if classes.contains(&name) {
            continue;
        }
        classes.push(name);
        let of_class = picked.iter().filter(|(_, a)| *a.view.device_class_name == *name);
        let requests: Vec<_> = of_class.map(|(_, a)| a.name.clone()).collect();
        out.extend(first.class.spec.config.iter().map(|config| DeviceConfigView {
            source: "FromClass".into(),
            requests: requests.clone(),
            opaque: config.opaque.clone(),
        }));
    }
    let concerns = |config: &&DeviceConfigView| {
        config.requests.is_empty()
            || picked.iter().any(|(at, alternative)| {
                let names = [&*pending.requests[*at].name, &*alternative.name];
                config.requests.iter().any(|name| names.contains(&&**name))
            })
    };
    let own = pending.claim.spec.devices.config.iter().filter(concerns);
    out.extend(own.map(|config| DeviceConfigView { source: "FromClaim".into(), ..config.clone() }));
    out
}

/// Returns the allocation's node selector: one node, the devices' selectors combined, or `None` for all nodes.
fn nodes(chosen: &[ChosenDevice<'_>], node: &Node) -> Option<Value> {
    let (mut fields, mut labels): (Vec<Value>, Vec<Value>) = Default::default();
    for chosen in chosen {
        let nodes = chosen.slice.nodes(chosen.device);
        if matches!(nodes, Nodes::One(_)) || chosen.device.view.binds_to_node == Some(true) {
            let only = json!({"key": "metadata.name", "operator": "In", "values": [*node.name]});
            return Some(json!({"nodeSelectorTerms": [{"matchFields": [only]}]}));
        }
        // The API allows one term in the selector of a slice or a device.
        if let Nodes::Selected(_, selector) = nodes {
            let term = &selector["nodeSelectorTerms"][0];
            for (out, kind) in [(&mut fields, "matchFields"), (&mut labels, "matchExpressions")] {
                for requirement in term[kind].as_array().into_iter().flatten() {
                    if !out.contains(requirement) {
                        out.push(requirement.clone());
                    }
                }
            }
        }
    }
    let mut term = serde_json::Map::new();
    for (kind, requirements) in [("matchFields", fields), ("matchExpressions", labels)] {
        if !requirements.is_empty() {
            term.insert(kind.to_owned(), Value::from(requirements));
        }
    }
    (!term.is_empty()).then(|| json!({"nodeSelectorTerms": [term]}))
}
