//! Chooses devices for a container, with the plugin's preferences.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::{Allocations, DeviceError, Devices};
use crate::topology::Mask;

/// The devices that a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The container has them already.
    Has,
    /// These devices. If the plugin has preferences, ask it the question and use [`Question::answered`] instead.
    These(BTreeSet<String>, Option<Question>),
}

/// The question to a plugin with preferences (GetPreferredAllocation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The devices that the plugin may choose from.
    pub available: BTreeSet<String>,
    /// The devices that the plugin must choose.
    pub must_include: BTreeSet<String>,
    /// The number of devices to choose.
    pub size: usize,
    /// The sets from which devices are added, in this order, if the plugin prefers too few.
    from: Vec<BTreeSet<String>>,
}

impl Question {
    /// Returns the devices to allocate: all that must be included, then allowed preferred ones, then others until there
    /// are enough.
    pub fn answered(&self, preferred: &[String]) -> BTreeSet<String> {
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
        (resource, wanted): (&str, usize),
        near: Option<Mask>,
    ) -> Result<Choice, DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(given) = self.given((uid, container)).and_then(|given| given.get(resource)) {
            let had = given.ids().len();
            // A device that became unhealthy after its allocation does not end the Pod.
            return if had == wanted {
                Ok(Choice::Has)
            } else {
                let (pod, container) = (uid.to_owned(), container.to_owned());
                let resource = resource.to_owned();
                Err(DeviceError::Changed { pod, container, resource, had, wanted })
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
        let kept: BTreeSet<String> =
            healthy().filter(|id| reusable.contains(*id)).take(wanted).cloned().collect();
        let taken = self.allocated(resource);
        let available: BTreeSet<String> =
            healthy().filter(|id| !taken.contains(id.as_str())).cloned().collect();
        let missing = wanted - kept.len();
        if available.len() < missing {
            let (resource, available) = (resource.to_owned(), available.len());
            return Err(DeviceError::TooFew { resource, wanted: missing, available });
        }
        if missing == 0 {
            return Ok(Choice::These(kept, None));
        }
        let question = preference_request(&devices, kept, available, (wanted, missing), near);
        let chosen = question.answered(&[]);
        let is_open = chosen.len() > question.must_include.len();
        Ok(Choice::These(chosen, is_open.then_some(question)))
    }
}

/// Builds the question. Devices near the wanted NUMA nodes come first, then those near other nodes, then those without
/// affinity.
fn preference_request(
    devices: &Devices,
    mut kept: BTreeSet<String>,
    available: BTreeSet<String>,
    (size, missing): (usize, usize),
    near: Option<Mask>,
) -> Question {
    let is_placed = |id: &String| devices.get(id).is_some_and(|device| !device.nodes.is_empty());
    let is_near = |id: &&String| {
        let near = near.unwrap_or_default();
        devices.get(*id).is_some_and(|device| device.nodes.iter().any(|node| near.has(*node)))
    };
    if near.is_none() || !devices.keys().any(is_placed) {
        let ask = available.union(&kept).cloned().collect();
        return Question { available: ask, must_include: kept, size, from: vec![available] };
    }
    let (aligned, others): (Vec<&String>, Vec<&String>) = available.iter().partition(is_near);
    let aligned: BTreeSet<String> = aligned.into_iter().cloned().collect();
    if missing < aligned.len() {
        let ask = aligned.union(&kept).cloned().collect();
        return Question { available: ask, must_include: kept, size, from: vec![aligned] };
    }
    kept.extend(aligned);
    let ask = available.union(&kept).cloned().collect();
    let (placed, loose): (Vec<&String>, Vec<&String>) =
        others.into_iter().partition(|id| is_placed(id));
    let set = |ids: Vec<&String>| ids.into_iter().cloned().collect();
    Question { available: ask, must_include: kept, size, from: vec![set(placed), set(loose)] }
}
