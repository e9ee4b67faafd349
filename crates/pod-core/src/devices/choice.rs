use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::{Book, DeviceError, Devices};
use crate::topology::Mask;

/// Which devices a container is to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It has them already.
    Has,
    /// These; or, if the plugin has a preference, what it says to the question, by [`Question::answered`].
    These(BTreeSet<String>, Option<Question>),
}

/// What a plugin with preferences is asked, and what is made of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub available: BTreeSet<String>,
    pub must_include: BTreeSet<String>,
    pub size: usize,
    /// Whence the rest is taken, in this order, if the plugin prefers too few.
    from: Vec<BTreeSet<String>>,
}

impl Question {
    /// The devices to give: those that must be, those preferred that may be, and of the rest as many as are missing.
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

impl Book {
    /// Chooses devices for a container of a Pod; `near` are the NUMA nodes that it is to be near.
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
            // They were healthy when they were given; that they are known to be so no more ends no Pod.
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
        let taken = self.taken(resource);
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
        let question = question(&devices, kept, available, (wanted, missing), near);
        let chosen = question.answered(&[]);
        let is_open = chosen.len() > question.must_include.len();
        Ok(Choice::These(chosen, is_open.then_some(question)))
    }
}

/// Devices near the wanted NUMA nodes come first, then others that are near some, then those that are near none.
fn question(
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
