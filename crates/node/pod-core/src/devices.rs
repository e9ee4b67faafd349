//! Devices of device plugins and their allocation to containers. Read [`Allocations`] first. This module does no I/O.
//!
//! The device manager writes the [`Allocations`] to the disk (see [`checkpoint`]) before a container starts, so that no
//! device is allocated twice.

pub mod checkpoint;
pub mod choice;
mod hints;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{
    resources::whole,
    spec::{Role, members},
    time::{Timestamp, after},
};

/// The time for which a resource is reported after its plugin has disconnected, so that the scheduler sees the change.
pub const GRACE: Duration = Duration::from_secs(5 * 60);
/// The limit of resources. Their names come from plugins.
pub const MAX_RESOURCES: usize = 256;
/// The NUMA node of a device without affinity.
pub const NO_NODE: i64 = -1;

/// A device as its plugin describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `true` if the plugin reports the device as healthy.
    pub healthy: bool,
    /// The NUMA nodes that the device is near.
    pub nodes: BTreeSet<i64>,
}

/// The devices of one plugin by ID.
pub type Devices = BTreeMap<String, Device>;

#[derive(Clone, Debug, Default)]
struct Resource {
    devices: Devices,
    /// `true` if the plugin has listed its devices since it connected.
    listed: bool,
    /// The time at which the plugin disconnected.
    stopped: Option<Timestamp>,
}

/// The allocation of one resource to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatedDevices {
    /// The device IDs by NUMA node. A device near several nodes occurs at each.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's encoded response, with the container's settings for the devices.
    pub response: Vec<u8>,
}

impl AllocatedDevices {
    /// Returns the device IDs, without duplicates.
    pub fn ids(&self) -> BTreeSet<&str> {
        self.devices.values().flatten().map(String::as_str).collect()
    }
}

/// The error of an allocation of devices. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    Unhealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    TooFew { resource: String, requested: usize, available: usize },
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {allocated} to {requested}"
    )]
    Changed { pod: String, container: String, resource: String, allocated: usize, requested: usize },
    #[error("there are {MAX_RESOURCES} resources of plugins already; {0} is one too many")]
    TooMany(String),
}

/// The number of devices of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All devices.
    pub capacity: usize,
    /// The healthy devices.
    pub allocatable: usize,
}

/// The recipient of an allocation: the Pod's UID and the container's name.
pub type ContainerKey<'a> = (&'a str, &'a str);

/// Reports whether a name is valid for a plugin's resource: it needs a domain other than those of Kubernetes.
pub fn is_resource_name(name: &str) -> bool {
    let of_quota = format!("requests.{name}");
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && api_meta::validation::qualified_name(&of_quota).is_empty()
}

type ContainerAllocations = BTreeMap<String, AllocatedDevices>;

/// The resources of all plugins and their allocation.
#[derive(Clone, Debug, Default)]
pub struct Allocations {
    resources: BTreeMap<String, Resource>,
    /// Resources whose plugins disconnected long ago. They are still reported, with zero devices.
    removed: BTreeSet<String>,
    pods: BTreeMap<String, BTreeMap<String, ContainerAllocations>>,
}

impl Allocations {
    /// Records that a plugin has connected. Its devices are unknown until it lists them.
    pub fn connect(&mut self, resource: &str) -> Result<(), DeviceError> {
        let count = self.resources.len() + self.removed.len();
        if count >= MAX_RESOURCES && !self.knows(resource) {
            return Err(DeviceError::TooMany(resource.to_owned()));
        }
        self.removed.remove(resource);
        let resource = self.resources.entry(resource.to_owned()).or_default();
        (resource.stopped, resource.listed) = (None, false);
        Ok(())
    }

    /// Records that a plugin has disconnected. Its devices are not allocatable any more.
    pub fn disconnect(&mut self, resource: &str, now: Timestamp) {
        if let Some(entry) = self.resources.get_mut(resource) {
            entry.stopped.get_or_insert(now);
            entry.listed = false;
        }
    }

    /// Records a plugin's devices. Returns the Pods that hold a device whose health has changed.
    pub fn list(&mut self, resource: &str, devices: Devices) -> BTreeSet<String> {
        let Some(entry) = self.resources.get_mut(resource) else { return BTreeSet::new() };
        let before = std::mem::replace(&mut entry.devices, devices);
        (entry.listed, entry.stopped) = (true, None);
        let health = |devices: &Devices, id: &str| devices.get(id).map(|device| device.healthy);
        let differs = |id: &&str| health(&before, id) != health(&entry.devices, id);
        let concerns = |of_pod: &BTreeMap<String, ContainerAllocations>| {
            let allocated = of_pod.values().filter_map(|container| container.get(resource));
            allocated.flat_map(AllocatedDevices::ids).any(|id| differs(&id))
        };
        let pods = self.pods.iter().filter(|(_, of_pod)| concerns(of_pod));
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the devices of a resource. While the plugin is disconnected, none of them is healthy.
    pub fn devices(&self, resource: &str) -> Devices {
        let Some(entry) = self.resources.get(resource) else { return Devices::new() };
        let now = |(id, device): (&String, &Device)| {
            (id.clone(), Device { healthy: device.healthy && entry.listed, ..device.clone() })
        };
        entry.devices.iter().map(now).collect()
    }

    /// Returns the names of the resources with known plugins.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.resources.keys().map(String::as_str)
    }

    /// Reports whether a device is healthy according to the plugin's last list. An unlisted device counts as healthy.
    pub fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.resources.get(resource).and_then(|r| r.devices.get(id)).is_none_or(|d| d.healthy)
    }

    /// Returns the number of devices of each resource for the Node's status. Removes resources whose plugins
    /// disconnected long ago; the second value is `true` if there were any.
    pub fn count(&mut self, now: Timestamp) -> (BTreeMap<String, Count>, bool) {
        let gone: Vec<String> = self
            .resources
            .iter()
            .filter(|(_, entry)| entry.stopped.is_some_and(|at| after(at, GRACE) < now))
            .map(|(name, _)| name.clone())
            .collect();
        let forgot = !gone.is_empty();
        self.resources.retain(|name, _| !gone.contains(name));
        self.removed.extend(gone);
        let count = |entry: &Resource| Count {
            capacity: entry.devices.len(),
            allocatable: entry.devices.values().filter(|d| d.healthy && entry.listed).count(),
        };
        // A plugin that has not listed its devices yet is omitted, so that the Node does not report zero devices.
        let present = self
            .resources
            .iter()
            .filter(|(_, r)| r.listed || r.stopped.is_some() || !r.devices.is_empty());
        let present = present.map(|(name, entry)| (name.clone(), count(entry)));
        let removed = self.removed.iter().map(|name| (name.clone(), Count::default()));
        (removed.chain(present).collect(), forgot)
    }

    /// Reports whether a resource belongs, or belonged, to a plugin.
    pub fn knows(&self, resource: &str) -> bool {
        let allocated =
            || self.pods.values().flat_map(BTreeMap::values).any(|c| c.contains_key(resource));
        self.resources.contains_key(resource) || self.removed.contains(resource) || allocated()
    }

    /// Returns the number of devices that a container requests, by resource. Requests equal limits.
    pub fn requests(&self, container: &Container) -> BTreeMap<String, usize> {
        let limits = container.resources.iter().flat_map(|r| r.limits.iter().flatten());
        let requested = limits.filter_map(|(name, amount)| {
            let amount = usize::try_from(whole(amount)).ok().filter(|amount| *amount > 0)?;
            self.knows(name).then(|| (name.clone(), amount))
        });
        requested.collect()
    }

    /// Returns the devices of a container, by resource.
    pub fn of_container(
        &self,
        (uid, container): ContainerKey<'_>,
    ) -> Option<&BTreeMap<String, AllocatedDevices>> {
        self.pods.get(uid)?.get(container)
    }

    /// Records an allocation.
    pub fn allocate(
        &mut self,
        (uid, container): ContainerKey<'_>,
        resource: &str,
        ids: &BTreeSet<String>,
        response: Vec<u8>,
    ) {
        let devices = self.resources.get(resource).map(|entry| &entry.devices);
        let mut allocated = AllocatedDevices { devices: BTreeMap::new(), response };
        for id in ids {
            let nodes = devices.and_then(|devices| devices.get(id)).map(|device| &device.nodes);
            let nodes = nodes.filter(|nodes| !nodes.is_empty()).cloned();
            for node in nodes.unwrap_or_else(|| [NO_NODE].into()) {
                allocated.devices.entry(node).or_default().push(id.clone());
            }
        }
        self.entry(uid, container).insert(resource.to_owned(), allocated);
    }

    fn entry(&mut self, uid: &str, container: &str) -> &mut ContainerAllocations {
        let of_pod = self.pods.entry(uid.to_owned()).or_default();
        of_pod.entry(container.to_owned()).or_default()
    }

    /// Reverts an allocation.
    pub fn revert(&mut self, (uid, container): ContainerKey<'_>, resource: &str) {
        let Some(of_pod) = self.pods.get_mut(uid) else { return };
        if let Some(of_container) = of_pod.get_mut(container) {
            of_container.remove(resource);
        }
        of_pod.retain(|_, of_container| !of_container.is_empty());
        self.pods.retain(|_, of_pod| !of_pod.is_empty());
    }

    /// Releases a Pod's devices. Returns `true` if it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// Returns the UIDs of the Pods with devices.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// Reports whether a Pod has devices of a resource.
    pub fn holds(&self, uid: &str, resource: &str) -> bool {
        let of_pod = self.pods.get(uid).into_iter().flat_map(BTreeMap::values);
        of_pod.into_iter().any(|container| container.contains_key(resource))
    }

    /// Returns the allocated devices of a resource.
    fn allocated(&self, resource: &str) -> BTreeSet<&str> {
        let allocated = self.pods.values().flat_map(BTreeMap::values);
        allocated
            .filter_map(|container| container.get(resource))
            .flat_map(AllocatedDevices::ids)
            .collect()
    }

    /// Returns the devices of init containers that end before this container starts. Sidecars run beside the container
    /// and keep their devices.
    fn reusable(&self, pod: &Pod, container: &str, resource: &str) -> BTreeSet<String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut reusable = BTreeSet::new();
        for member in members(pod) {
            let name = member.container.name.as_str();
            if name == container {
                break;
            }
            let allocated =
                self.of_container((uid, name)).and_then(|allocated| allocated.get(resource));
            let ids = allocated.into_iter().flat_map(AllocatedDevices::ids).map(str::to_owned);
            match member.role {
                Role::Init => reusable.extend(ids),
                Role::Sidecar | Role::App | Role::Ephemeral => {
                    ids.for_each(|id| reusable.retain(|other| *other != id));
                }
            }
        }
        reusable
    }
}
