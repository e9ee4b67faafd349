//! Topology hints for devices.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{AllocatedDevices, Allocations, Devices};
use crate::topology::{Hints, Mask, at_once, hints};

impl Allocations {
    /// Returns a hint for each resource that a container requests, on a machine with these NUMA nodes.
    pub fn hints(&self, pod: &Pod, container: &Container, nodes: &[i64]) -> Vec<Hints> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let name = container.name.as_str();
        let hint = |(resource, count): (String, usize)| {
            let allocated =
                self.of_container((uid, name)).and_then(|allocated| allocated.get(&resource));
            let allocated = allocated.map(AllocatedDevices::ids).unwrap_or_default();
            let reusable = self.reusable(pod, name, &resource);
            self.of_resource(&resource, count, &allocated, &reusable, nodes)
        };
        self.requests(container).into_iter().map(hint).collect()
    }

    /// Returns a hint for each resource that a whole Pod requests.
    pub fn pod_hints(&self, pod: &Pod, nodes: &[i64]) -> Vec<Hints> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let of_pod = || self.pods.get(uid).into_iter().flat_map(|of_pod| of_pod.values());
        let hint = |resource: &str| {
            let amount_of =
                |container: &Container| self.requests(container).remove(resource).unwrap_or(0);
            let count = Some(at_once(pod, amount_of)).filter(|count| *count > 0)?;
            let allocated = of_pod()
                .filter_map(|allocated| allocated.get(resource))
                .flat_map(AllocatedDevices::ids);
            self.of_resource(resource, count, &allocated.collect(), &BTreeSet::new(), nodes)
        };
        self.names().map(hint).collect()
    }

    fn of_resource(
        &self,
        resource: &str,
        count: usize,
        allocated: &BTreeSet<&str>,
        reusable: &BTreeSet<String>,
        nodes: &[i64],
    ) -> Hints {
        let devices = self.devices(resource);
        if devices.values().all(|device| device.nodes.is_empty()) {
            return None;
        }
        if !allocated.is_empty() {
            let same = allocated.len() == count;
            let none = BTreeSet::new();
            return Some(if same {
                near(&devices, count, allocated, &none, nodes)
            } else {
                Vec::new()
            });
        }
        let in_use = self.allocated(resource);
        let healthy = devices.iter().filter(|(_, device)| device.healthy);
        let free = healthy.map(|(id, _)| id.as_str()).filter(|id| !in_use.contains(id)).collect();
        Some(near(&devices, count, &free, reusable, nodes))
    }
}

/// Computes hints. NUMA nodes without a device of the resource are ignored.
fn near(
    devices: &Devices,
    count: usize,
    free: &BTreeSet<&str>,
    reused: &BTreeSet<String>,
    nodes: &[i64],
) -> Vec<crate::topology::Hint> {
    let have: BTreeSet<i64> = devices.values().flat_map(|d| d.nodes.iter().copied()).collect();
    let with: Vec<i64> = nodes.iter().copied().filter(|node| have.contains(node)).collect();
    let nodes = if with.is_empty() { nodes } else { &with };
    let on = |mask: Mask, id: &str| {
        devices.get(id).is_some_and(|device| device.nodes.iter().any(|node| mask.has(*node)))
    };
    let is_placed = |id: &&String| devices.get(*id).is_some_and(|device| !device.nodes.is_empty());
    let total = |mask: Mask| devices.keys().filter(|id| on(mask, id)).count();
    let free = |mask: Mask| {
        let reused: Vec<&String> = reused.iter().filter(is_placed).collect();
        let all_reused = reused.iter().all(|id| on(mask, id));
        all_reused.then(|| reused.len() + free.iter().filter(|id| on(mask, id)).count())
    };
    hints(nodes, count, total, free)
}
