//! Dynamic resource allocation: which devices Pods' claims have, and which they may get on a node.
//!
//! Claims, classes and slices are kept as the API shows them; pools and what expressions see of devices are made of
//! slices when these change. An allocation that is decided and not seen yet is in flight: its devices are taken.

mod allocation;
mod capacity;
mod requests;
mod search;
mod selectors;
mod slices;
pub(crate) mod view;

pub(crate) use self::search::Stop;

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use self::{
    requests::{Reader, Wanted},
    search::{Effort, Search, Taken},
    selectors::Compiled,
    slices::{Pools, node_selector},
    view::{Allocation, DeviceClassView, ResourceClaimView, ResourceSliceView},
};
use crate::{
    node::Node,
    nodeaffinity::NodeSelector,
    pod::{Pod, PodClaim},
    volumes::Progress,
};

type Key = (Arc<str>, Box<str>);

/// An allocation that is decided, and not in what the API has shown.
#[derive(Clone)]
struct InFlight {
    /// The uid of the Pod that it is for.
    pod: Arc<str>,
    allocation: Allocation,
    /// The claim's resource version with it, once it is written.
    written: Option<u64>,
}

/// One claim of a Pod that has a node now.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceBinding {
    pub claim: Box<str>,
    pub uid: Box<str>,
    /// What is to be written; without it, the claim has its devices.
    pub allocation: Option<Allocation>,
}

/// What has come about with a claim, for those who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimChange {
    /// Its devices are others' to have.
    pub freed: bool,
    /// It is there, and may not be as it was before.
    pub changed: bool,
}

/// Claims, classes and slices, and what is decided about them.
#[derive(Default)]
pub(crate) struct Devices {
    claims: HashMap<Key, ResourceClaimView>,
    classes: HashMap<Box<str>, DeviceClassView>,
    pools: Pools,
    /// By the uids of claims.
    in_flight: HashMap<String, InFlight>,
    compiled: Compiled,
}

/// Resource versions of one kind of objects grow.
fn version(claim: &ResourceClaimView) -> u64 {
    claim.metadata.resource_version.parse().unwrap_or(0)
}

impl Devices {
    pub(crate) fn set_claim(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&ResourceClaimView>,
    ) -> ClaimChange {
        let key = (namespace.clone(), name.into());
        let old = match view {
            Some(view) => self.claims.insert(key, view.clone()),
            None => self.claims.remove(&key),
        };
        let known = old.as_ref().or(view).map(|claim| claim.metadata.uid.clone());
        let shown = |flying: &InFlight| {
            let same = view.filter(|view| known.as_ref() == Some(&view.metadata.uid));
            same.is_none_or(|view| {
                view.status.allocation.is_some()
                    || flying.written.is_some_and(|written| version(view) >= written)
            })
        };
        let landed = known.as_ref().filter(|uid| self.in_flight.get(*uid).is_some_and(shown));
        let landed = landed.and_then(|uid| self.in_flight.remove(uid)).is_some();
        let had = landed || old.is_some_and(|old| old.status.allocation.is_some());
        let has = view.is_some_and(|view| view.status.allocation.is_some());
        ClaimChange { freed: had && !has, changed: view.is_some() }
    }

    pub(crate) fn set_class(&mut self, name: &str, view: Option<&DeviceClassView>) {
        match view {
            Some(view) => drop(self.classes.insert(name.into(), view.clone())),
            None => drop(self.classes.remove(name)),
        }
    }

    pub(crate) fn set_slice(&mut self, name: &str, view: Option<&ResourceSliceView>) {
        self.pools.set(name, view);
    }

    /// The Pod's claims, each once, or why it has to wait for one.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Result<Vec<&ResourceClaimView>, String> {
        let mut found: Vec<&ResourceClaimView> = Vec::new();
        for wanted in &pod.device_claims {
            let (name, generated) = match wanted {
                PodClaim::Named(name) => (name, false),
                PodClaim::Generated(name) => (name, true),
                PodClaim::Needless => continue,
                PodClaim::Awaited => {
                    let (namespace, pod) = (&pod.id.namespace, &pod.id.name);
                    return Err(format!(
                        "pod \"{namespace}/{pod}\": ResourceClaim not created yet"
                    ));
                }
            };
            let key = (pod.id.namespace.clone(), name.clone());
            let claim = self.claims.get(&key).ok_or_else(|| {
                format!("could not find v1.ResourceClaim \"{}/{name}\"", pod.id.namespace)
            })?;
            if claim.metadata.terminating() {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            if generated && !claim.metadata.controlled_by(&pod.id.uid) {
                let (namespace, pod) = (&pod.id.namespace, &pod.id.name);
                return Err(format!(
                    "ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod} (Pod is not owner)"
                ));
            }
            if !found.iter().any(|known| known.metadata.uid == claim.metadata.uid) {
                found.push(claim);
            }
        }
        Ok(found)
    }

    /// Whether the Pod uses a claim of this name.
    pub(crate) fn uses(pod: &Pod, namespace: &str, name: &str) -> bool {
        *pod.id.namespace == *namespace
            && pod.device_claims.iter().any(|claim| match claim {
                PodClaim::Named(own) | PodClaim::Generated(own) => **own == *name,
                PodClaim::Needless | PodClaim::Awaited => false,
            })
    }

    /// What decides for the Pod on every node, or why it can run on none.
    pub(crate) fn look(&self, pod: &Pod) -> Result<Look<'_>, String> {
        let mut look = Look {
            devices: self,
            has: Vec::new(),
            wants: Vec::new(),
            taken: Taken::default(),
            effort: Effort::default(),
        };
        let reader = Reader { classes: &self.classes, compiled: &self.compiled };
        for claim in self.of_pod(pod)? {
            let Some(allocation) = &claim.status.allocation else {
                if self.in_flight.contains_key(&claim.metadata.uid) {
                    let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
                    return Err(format!(
                        "resource claim {namespace}/{name} is in the process of being allocated"
                    ));
                }
                look.wants.push(reader.read(claim)?);
                continue;
            };
            let nodes = match &allocation.node_selector {
                None => None,
                Some(selector) => Some(node_selector(selector).ok_or_else(|| {
                    format!("resourceclaim {}: nodeSelector cannot be read", claim.metadata.name)
                })?),
            };
            look.has.push(Had { claim, nodes });
        }
        if !look.wants.is_empty() {
            self.claims
                .values()
                .filter_map(|claim| claim.status.allocation.as_ref())
                .chain(self.in_flight.values().map(|flying| &flying.allocation))
                .for_each(|allocation| look.taken.add(allocation));
        }
        Ok(look)
    }

    /// What is to be written for the Pod on a node that has passed.
    pub(crate) fn choose(&self, pod: &Pod, node: &Node) -> Option<Vec<DeviceBinding>> {
        let mut out = Vec::new();
        if pod.device_claims.is_empty() {
            return Some(out);
        }
        let look = self.look(pod).ok()?;
        let found = look.allocate(node).ok()?;
        let mut binding = |claim: &ResourceClaimView, allocation| {
            let (claim, uid) = (&*claim.metadata.name, &*claim.metadata.uid);
            let (claim, uid) = (claim.into(), uid.into());
            out.push(DeviceBinding { claim, uid, allocation });
        };
        look.has.iter().for_each(|had| binding(had.claim, None));
        look.wants
            .iter()
            .zip(found)
            .for_each(|(wanted, allocation)| binding(wanted.claim, Some(allocation)));
        Some(out)
    }

    /// Keeps what was chosen from other Pods.
    pub(crate) fn promise(&mut self, pod: &Pod, chosen: &[DeviceBinding]) {
        for binding in chosen {
            if let Some(allocation) = binding.allocation.clone() {
                let flying = InFlight { pod: pod.id.uid.clone(), allocation, written: None };
                self.in_flight.insert(binding.uid.to_string(), flying);
            }
        }
    }

    /// An allocation is written: it stays taken until the API shows the claim of this version.
    pub(crate) fn written(&mut self, uid: &str, resource_version: &str) {
        let shown = self.claims.values().find(|claim| *claim.metadata.uid == *uid).map(version);
        let written = resource_version.parse().unwrap_or(u64::MAX);
        if shown.is_none_or(|shown| shown >= written) {
            self.in_flight.remove(uid);
        } else if let Some(flying) = self.in_flight.get_mut(uid) {
            flying.written = Some(written);
        }
    }

    /// The Pod is gone, or to be given another node: what was not written for it is free.
    pub(crate) fn forget(&mut self, pod: &str) {
        self.in_flight.retain(|_, flying| *flying.pod != *pod || flying.written.is_some());
    }

    /// What another one knows that no informer can tell: what is in flight for these Pods, or written.
    pub(crate) fn carry_over(&mut self, old: &Devices, pods: &HashSet<&str>) {
        let kept = old.in_flight.iter();
        let kept = kept.filter(|(_, f)| f.written.is_some() || pods.contains(&*f.pod));
        self.in_flight.extend(kept.map(|(uid, flying)| (uid.clone(), flying.clone())));
    }

    /// How far the devices of a Pod's claims are, of which some are made ready only after they are allocated.
    pub(crate) fn progress(&self, pod: &Pod, claims: &[DeviceBinding]) -> Progress {
        let mut progress = Progress::Bound;
        for binding in claims {
            let key = (pod.id.namespace.clone(), binding.claim.clone());
            let claim = self.claims.get(&key).filter(|claim| *claim.metadata.uid == *binding.uid);
            let Some(claim) = claim else {
                return Progress::Refused(format!("resourceclaim \"{}\" is gone", binding.claim));
            };
            match readiness(claim) {
                Ok(true) => {}
                Ok(false) => progress = Progress::Waiting,
                Err(why) => return Progress::Refused(why),
            }
        }
        progress
    }
}

/// Whether all of a claim's devices are ready for a Pod: their drivers say so in conditions that the devices name.
fn readiness(claim: &ResourceClaimView) -> Result<bool, String> {
    let Some(allocation) = &claim.status.allocation else { return Ok(false) };
    let bound = allocation.devices.results.iter().filter(|d| !d.binding_conditions.is_empty());
    for device in bound {
        let mut said = claim.status.devices.iter();
        let said = said.find(|said| {
            said.device == device.device && said.driver == device.driver && said.pool == device.pool
        });
        let Some(said) = said else { return Ok(false) };
        let is_true = |name: &str| {
            said.conditions.iter().find(|c| *c.r#type == *name && &*c.status == "True")
        };
        let mut failures = device.binding_failure_conditions.iter();
        if let Some(failed) = failures.find_map(|name| is_true(name)) {
            return Err(format!(
                "device binding failed: claim={}, reason={}, message={:?}",
                claim.metadata.name, failed.reason, failed.message
            ));
        }
        if !device.binding_conditions.iter().all(|name| is_true(name).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A claim that has its devices.
struct Had<'a> {
    claim: &'a ResourceClaimView,
    nodes: Option<NodeSelector>,
}

/// One Pod's claims, ready to be looked at for one node after the other.
pub(crate) struct Look<'a> {
    devices: &'a Devices,
    has: Vec<Had<'a>>,
    wants: Vec<Wanted<'a>>,
    taken: Taken<'a>,
    effort: Effort,
}

impl<'a> Look<'a> {
    /// Whether every node will do.
    pub(crate) fn is_idle(&self) -> bool {
        self.wants.is_empty() && self.has.is_empty()
    }

    /// The claims whose devices cannot be used on the node, or not at all.
    pub(crate) fn unavailable(&self, node: &Node) -> impl Iterator<Item = &'a ResourceClaimView> {
        let elsewhere = |had: &&Had<'a>| {
            had.nodes.as_ref().is_some_and(|nodes| !nodes.matches(node))
                || readiness(had.claim).is_err()
        };
        self.has.iter().filter(elsewhere).map(|had| had.claim)
    }

    /// What the claims without devices would get on the node.
    pub(crate) fn allocate(&self, node: &Node) -> Result<Vec<Allocation>, Stop> {
        if self.wants.is_empty() {
            return Ok(Vec::new());
        }
        let pools = self.devices.pools.of(node);
        Search::new(node, pools, &self.wants, &self.taken, &self.effort).run()
    }

    /// How early in the lists of alternatives those are that the node would give.
    pub(crate) fn preference(&self, node: &Node) -> i64 {
        let found = self.allocate(node).unwrap_or_default();
        let new = self.wants.iter().map(|wanted| wanted.claim).zip(&found);
        let had = self.has.iter();
        let had = had.filter_map(|had| Some((had.claim, had.claim.status.allocation.as_ref()?)));
        new.chain(had).map(|(claim, allocation)| rank(claim, allocation)).sum()
    }
}

/// The most alternatives that a request can list (`FirstAvailableDeviceRequestMaxSize`).
const MAX_ALTERNATIVES: i64 = 8;

fn rank(claim: &ResourceClaimView, allocation: &Allocation) -> i64 {
    let listed = claim.spec.devices.requests.iter().flat_map(|request| {
        request.first_available.iter().enumerate().map(move |(at, alternative)| {
            (MAX_ALTERNATIVES - at as i64, format!("{}/{}", request.name, alternative.name))
        })
    });
    let given = |name: &str| allocation.devices.results.iter().any(|d| *d.request == *name);
    listed.filter(|(_, name)| given(name)).map(|(rank, _)| rank).sum()
}
