//! Chooses devices for a container, with the plugin's preferences.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::{Allocations, DeviceError, Devices};
use crate::topology::Mask;

/// The devices that a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The container has them already.
    Existing,
    /// New devices. If the plugin has preferences, send it the request and allocate [`PreferenceRequest::choose`].
    New(BTreeSet<String>, Option<PreferenceRequest>),
}

/// The request to a plugin with preferences (GetPreferredAllocation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferenceRequest {
    /// The devices that the plugin may choose from.
    pub available: BTreeSet<String>,
    /// The devices that the plugin must choose.
    pub must_include: BTreeSet<String>,
    /// The number of devices to choose.
    pub size: usize,
    /// The sets from which devices are added, in this order, if the plugin prefers too few.
    from: Vec<BTreeSet<String>>,
}

impl PreferenceRequest {
    /// Returns the devices to allocate: all that must be included, then allowed preferred ones, then others until there
    /// are enough.
    pub fn choose(&self, preferred: &[String]) -> BTreeSet<String> {
        let mut chosen = self.must_include.clone();
        let may = |id: &&String| self.from.iter().any(|from| from.contains(*id));
        let rest = self.from.iter().flatten();
        for id in preferred.iter().filter(may).chain(rest) {
            if chosen.len() >= self.size {
                break;
            }
            chosen.insert(id.clone());
        }
        chosen
    }
}

impl Allocations {
    /// Chooses devices for a container of a Pod, near these NUMA nodes if possible.
    pub fn choose(
        &self,
        pod: &Pod,
        container: &str,
        resource: &str,
        count: usize,
        near: Option<Mask>,
    ) -> Result<Choice, DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(devices) = self.of_container((uid, container)).and_then(|all| all.get(resource))
        {
            let allocated = devices.ids().len();
            // A device that became unhealthy after its allocation does not end the Pod.
            return if allocated == count {
                Ok(Choice::Existing)
            } else {
                let (pod, container) = (uid.to_owned(), container.to_owned());
                let resource = resource.to_owned();
                Err(DeviceError::Changed { pod, container, resource, allocated, requested: count })
            };
        }
        let devices = match self.resources.get(resource) {
            Some(_) => self.devices(resource),
            None => return Err(DeviceError::Unregistered(resource.to_owned())),
        };
        let healthy = || devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id);
        if healthy().next().is_none() {
            return Err(DeviceError::Unhealthy(resource.to_owned()));
        }
        let reusable = self.reusable(pod, container, resource);
        let reused: BTreeSet<String> =
            healthy().filter(|id| reusable.contains(*id)).take(count).cloned().collect();
        let allocated = self.allocated(resource);
        let available: BTreeSet<String> =
            healthy().filter(|id| !allocated.contains(id.as_str())).cloned().collect();
        let missing = count - reused.len();
        if available.len() < missing {
            let (resource, available) = (resource.to_owned(), available.len());
            return Err(DeviceError::TooFew { resource, requested: missing, available });
        }
        if missing == 0 {
            return Ok(Choice::New(reused, None));
        }
        let request = preference_request(&devices, reused, available, count, near);
        let chosen = request.choose(&[]);
        let is_open = chosen.len() > request.must_include.len();
        Ok(Choice::New(chosen, is_open.then_some(request)))
    }
}

/// Builds the request. Devices near the preferred NUMA nodes come first, then those near other nodes, then those
/// without affinity.
fn preference_request(
    devices: &Devices,
    mut reused: BTreeSet<String>,
    available: BTreeSet<String>,
    size: usize,
    near: Option<Mask>,
) -> PreferenceRequest {
    let is_placed = |id: &String| devices.get(id).is_some_and(|device| !device.nodes.is_empty());
    let is_near = |id: &&String| {
        let near = near.unwrap_or_default();
        devices.get(*id).is_some_and(|device| device.nodes.iter().any(|node| near.has(*node)))
    };
    if near.is_none() || !devices.keys().any(is_placed) {
        let all = available.union(&reused).cloned().collect();
        return PreferenceRequest {
            available: all,
            must_include: reused,
            size,
            from: vec![available],
        };
    }
    let (aligned, others): (Vec<&String>, Vec<&String>) = available.iter().partition(is_near);
    let aligned: BTreeSet<String> = aligned.into_iter().cloned().collect();
    if size - reused.len() < aligned.len() {
        let all = aligned.union(&reused).cloned().collect();
        return PreferenceRequest {
            available: all,
            must_include: reused,
            size,
            from: vec![aligned],
        };
    }
    reused.extend(aligned);
    let all = available.union(&reused).cloned().collect();
    let (placed, loose): (Vec<&String>, Vec<&String>) =
        others.into_iter().partition(|id| is_placed(id));
    let set = |ids: Vec<&String>| ids.into_iter().cloned().collect();
    PreferenceRequest {
        available: all,
        must_include: reused,
        size,
        from: vec![set(placed), set(loose)],
    }
}
