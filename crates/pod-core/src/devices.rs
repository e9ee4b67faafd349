//! Devices of plugins: which there are, and which container has which.
//!
//! A [`Book`] is written by those who speak with plugins and read by everybody. What it says of devices that are given
//! away goes to the disk by [`checkpoint`] before a container starts, so that no device is given away twice.

pub mod checkpoint;
mod choice;
mod hints;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod};

pub use choice::{Choice, Question};

use crate::{Role, Timestamp, after, members, resources::whole};

/// How long a resource is told of after its plugin has gone, so that the scheduler hears of it.
pub const GRACE: Duration = Duration::from_secs(5 * 60);
/// So many resources at most: names come from plugins.
pub const MOST_RESOURCES: usize = 256;
/// The place of a device that is near no NUMA node rather than another.
pub const NOWHERE: i64 = -1;

/// One device, by its plugin's word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub healthy: bool,
    /// The NUMA nodes that it is near.
    pub nodes: BTreeSet<i64>,
}

/// The devices of one plugin by their IDs.
pub type Devices = BTreeMap<String, Device>;

#[derive(Clone, Debug, Default)]
struct Resource {
    devices: Devices,
    /// Whether the plugin has said what devices it has since it was connected.
    listed: bool,
    /// Since when there is no plugin.
    stopped: Option<Timestamp>,
}

/// What a container was given of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The devices by NUMA node. One that is near several stands with each.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer, encoded: what the container needs to use them.
    pub answer: Vec<u8>,
}

impl Given {
    /// The devices, each once.
    pub fn ids(&self) -> BTreeSet<&str> {
        self.devices.values().flatten().map(String::as_str).collect()
    }
}

/// Why a container is not given devices, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    Unhealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {wanted}, Available: {available}"
    )]
    TooFew { resource: String, wanted: usize, available: usize },
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {had} to {wanted}"
    )]
    Changed { pod: String, container: String, resource: String, had: usize, wanted: usize },
    #[error("there are {MOST_RESOURCES} resources of plugins already; {0} is one too many")]
    TooMany(String),
}

/// How many devices of a resource there are: all, and those that Pods may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub capacity: usize,
    pub allocatable: usize,
}

/// Whom something is given to: the Pod's UID, and the container's name.
pub type Whom<'a> = (&'a str, &'a str);

/// Whether a resource may be a plugin's: it is of somebody's domain, and that is not Kubernetes' own.
pub fn is_resource_name(name: &str) -> bool {
    let of_quota = format!("requests.{name}");
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && api_meta::validation::qualified_name(&of_quota).is_empty()
}

type OfContainer = BTreeMap<String, Given>;

/// All resources of plugins, and what was given of them.
#[derive(Clone, Debug, Default)]
pub struct Book {
    resources: BTreeMap<String, Resource>,
    /// Resources whose plugins have gone for good: the API goes on being told that there are none.
    removed: BTreeSet<String>,
    given: BTreeMap<String, BTreeMap<String, OfContainer>>,
}

impl Book {
    /// A plugin is there, and has yet to say what devices it has.
    pub fn connect(&mut self, resource: &str) -> Result<(), DeviceError> {
        let known = self.resources.len() + self.removed.len();
        if known >= MOST_RESOURCES && !self.knows(resource) {
            return Err(DeviceError::TooMany(resource.to_owned()));
        }
        self.removed.remove(resource);
        let resource = self.resources.entry(resource.to_owned()).or_default();
        (resource.stopped, resource.listed) = (None, false);
        Ok(())
    }

    /// The plugin is gone: nothing of its devices is known.
    pub fn disconnect(&mut self, resource: &str, now: Timestamp) {
        if let Some(known) = self.resources.get_mut(resource) {
            known.stopped.get_or_insert(now);
            known.listed = false;
        }
    }

    /// A plugin says which devices it has. Returns the Pods that have one whose health is told anew.
    pub fn list(&mut self, resource: &str, devices: Devices) -> BTreeSet<String> {
        let Some(known) = self.resources.get_mut(resource) else { return BTreeSet::new() };
        let before = std::mem::replace(&mut known.devices, devices);
        (known.listed, known.stopped) = (true, None);
        let health = |devices: &Devices, id: &str| devices.get(id).map(|device| device.healthy);
        let differs = |id: &&str| health(&before, id) != health(&known.devices, id);
        let concerns = |of_pod: &BTreeMap<String, OfContainer>| {
            let given = of_pod.values().filter_map(|container| container.get(resource));
            given.flat_map(Given::ids).any(|id| differs(&id))
        };
        let pods = self.given.iter().filter(|(_, of_pod)| concerns(of_pod));
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    /// The devices of a resource, none of which is healthy while its plugin is away.
    pub fn devices(&self, resource: &str) -> Devices {
        let Some(known) = self.resources.get(resource) else { return Devices::new() };
        let now = |(id, device): (&String, &Device)| {
            (id.clone(), Device { healthy: device.healthy && known.listed, ..device.clone() })
        };
        known.devices.iter().map(now).collect()
    }

    /// The names of the resources whose plugins are known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.resources.keys().map(String::as_str)
    }

    /// Whether a device works, as its plugin has last said; what it says nothing of is taken for well.
    pub fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.resources.get(resource).and_then(|r| r.devices.get(id)).is_none_or(|d| d.healthy)
    }

    /// How much there is of each resource, for the Node's status. Forgets those whose plugins went long ago, and returns
    /// whether there was one.
    pub fn count(&mut self, now: Timestamp) -> (BTreeMap<String, Count>, bool) {
        let gone: Vec<String> = self
            .resources
            .iter()
            .filter(|(_, known)| known.stopped.is_some_and(|at| after(at, GRACE) < now))
            .map(|(name, _)| name.clone())
            .collect();
        let forgot = !gone.is_empty();
        self.resources.retain(|name, _| !gone.contains(name));
        self.removed.extend(gone);
        let count = |known: &Resource| Count {
            capacity: known.devices.len(),
            allocatable: known.devices.values().filter(|d| d.healthy && known.listed).count(),
        };
        // A plugin that has not listed its devices yet is not told of, lest the scheduler be told that there are none.
        let told = self
            .resources
            .iter()
            .filter(|(_, r)| r.listed || r.stopped.is_some() || !r.devices.is_empty());
        let told = told.map(|(name, known)| (name.clone(), count(known)));
        let removed = self.removed.iter().map(|name| (name.clone(), Count::default()));
        (removed.chain(told).collect(), forgot)
    }

    /// Whether a resource is, or was, a plugin's; any other is nobody's to give.
    pub fn knows(&self, resource: &str) -> bool {
        let given =
            || self.given.values().flat_map(BTreeMap::values).any(|c| c.contains_key(resource));
        self.resources.contains_key(resource) || self.removed.contains(resource) || given()
    }

    /// How many devices of which resource a container asks for. They are no more than its limits.
    pub fn asked(&self, container: &Container) -> BTreeMap<String, usize> {
        let limits = container.resources.iter().flat_map(|r| r.limits.iter().flatten());
        let asked = limits.filter_map(|(name, amount)| {
            let amount = usize::try_from(whole(amount)).ok().filter(|amount| *amount > 0)?;
            self.knows(name).then(|| (name.clone(), amount))
        });
        asked.collect()
    }

    /// What a container was given, by resource.
    pub fn given(&self, (uid, container): Whom<'_>) -> Option<&BTreeMap<String, Given>> {
        self.given.get(uid)?.get(container)
    }

    /// Writes down that a container has devices.
    pub fn give(
        &mut self,
        (uid, container): Whom<'_>,
        resource: &str,
        ids: &BTreeSet<String>,
        answer: Vec<u8>,
    ) {
        let devices = self.resources.get(resource).map(|known| &known.devices);
        let mut given = Given { devices: BTreeMap::new(), answer };
        for id in ids {
            let nodes = devices.and_then(|devices| devices.get(id)).map(|device| &device.nodes);
            let nodes = nodes.filter(|nodes| !nodes.is_empty()).cloned();
            for node in nodes.unwrap_or_else(|| [NOWHERE].into()) {
                given.devices.entry(node).or_default().push(id.clone());
            }
        }
        self.of(uid, container).insert(resource.to_owned(), given);
    }

    fn of(&mut self, uid: &str, container: &str) -> &mut OfContainer {
        let of_pod = self.given.entry(uid.to_owned()).or_default();
        of_pod.entry(container.to_owned()).or_default()
    }

    /// Takes back what a container was given of a resource, as if it had not been.
    pub fn take_back(&mut self, (uid, container): Whom<'_>, resource: &str) {
        let Some(of_pod) = self.given.get_mut(uid) else { return };
        if let Some(of_container) = of_pod.get_mut(container) {
            of_container.remove(resource);
        }
        of_pod.retain(|_, of_container| !of_container.is_empty());
        self.given.retain(|_, of_pod| !of_pod.is_empty());
    }

    /// A Pod's devices may be given to others. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        self.given.remove(uid).is_some()
    }

    /// The Pods that have devices.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }

    /// Whether a Pod has devices of a resource.
    pub fn holds(&self, uid: &str, resource: &str) -> bool {
        let of_pod = self.given.get(uid).into_iter().flat_map(BTreeMap::values);
        of_pod.into_iter().any(|container| container.contains_key(resource))
    }

    /// The devices of a resource that somebody has.
    fn taken(&self, resource: &str) -> BTreeSet<&str> {
        let given = self.given.values().flat_map(BTreeMap::values);
        given.filter_map(|container| container.get(resource)).flat_map(Given::ids).collect()
    }

    /// What a container of a Pod may use that an init container before it had: that one has ended by then. What runs
    /// beside the container, sidecars among them, keeps its own.
    fn reusable(&self, pod: &Pod, container: &str, resource: &str) -> BTreeSet<String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut reusable = BTreeSet::new();
        for member in members(pod) {
            let name = member.container.name.as_str();
            if name == container {
                break;
            }
            let given = self.given((uid, name)).and_then(|given| given.get(resource));
            let ids = given.into_iter().flat_map(Given::ids).map(str::to_owned);
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
