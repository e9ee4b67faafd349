//! Dynamic resource allocation: the devices of Pods' claims, and the devices that they may get on a node.
//!
//! Claims, classes and slices are stored as the API has them. Pools and the values for CEL are derived when slices
//! change. An allocation that was decided but is not visible in the API yet is in flight; its devices count as used.

mod allocation;
mod capacity;
mod error;
mod requests;
mod search;
mod selectors;
mod slices;
pub(crate) mod view;

pub(crate) use self::{
    error::ClaimError,
    search::{SearchError, Stop},
};

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use self::{
    requests::{PendingClaim, Reader},
    search::{DevicesInUse, Effort, Search},
    selectors::SelectorCache,
    slices::{Pools, node_selector},
    view::{Allocation, DeviceClassView, ResourceClaimView, ResourceSliceView},
};
use crate::{
    maps::set,
    node::Node,
    nodeaffinity::NodeSelector,
    pod::{Pod, PodClaim},
    volumes::Progress,
};

type Key = (Arc<str>, Box<str>);

/// An allocation that was decided and is not visible in the API yet.
#[derive(Clone)]
struct InFlight {
    /// The uid of the Pod that the allocation is for.
    pod: Arc<str>,
    allocation: Allocation,
    /// The claim's resourceVersion after the write; `None` before it.
    written: Option<u64>,
}

/// The allocation of one claim of a Pod that was given a node.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceBinding {
    /// The claim's name.
    pub claim: Box<str>,
    /// The claim's uid.
    pub uid: Box<str>,
    /// The allocation to write; `None` if the claim is allocated already.
    pub allocation: Option<Allocation>,
}

/// The effect of a change of a claim on waiting Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimChange {
    /// `true` if devices became free.
    pub freed: bool,
    /// `true` if the claim exists and differs.
    pub changed: bool,
}

/// Claims, classes and slices, and the allocations in flight.
#[derive(Default)]
pub(crate) struct Devices {
    claims: HashMap<Key, ResourceClaimView>,
    classes: HashMap<Box<str>, DeviceClassView>,
    pools: Pools,
    /// Allocations in flight, by claim uid.
    in_flight: HashMap<String, InFlight>,
    compiled: SelectorCache,
}

/// Returns a claim's resourceVersion, which grows within one resource.
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
        let old = set(&mut self.claims, key, view.cloned());
        let uid = old.as_ref().or(view).map(|claim| claim.metadata.uid.clone());
        let is_visible = |flying: &InFlight| {
            let same = view.filter(|view| uid.as_ref() == Some(&view.metadata.uid));
            same.is_none_or(|view| {
                view.status.allocation.is_some()
                    || flying.written.is_some_and(|written| version(view) >= written)
            })
        };
        let landed = uid.as_ref().filter(|uid| self.in_flight.get(*uid).is_some_and(is_visible));
        let landed = landed.and_then(|uid| self.in_flight.remove(uid)).is_some();
        let had = landed || old.is_some_and(|old| old.status.allocation.is_some());
        let has = view.is_some_and(|view| view.status.allocation.is_some());
        ClaimChange { freed: had && !has, changed: view.is_some() }
    }

    pub(crate) fn set_class(&mut self, name: &str, view: Option<&DeviceClassView>) {
        set(&mut self.classes, name.into(), view.cloned());
    }

    pub(crate) fn set_slice(&mut self, name: &str, view: Option<&ResourceSliceView>) {
        self.pools.set(name, view);
    }

    /// Returns the Pod's claims without duplicates, or the reason why it must wait for one.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Result<Vec<&ResourceClaimView>, ClaimError> {
        let mut claims: Vec<&ResourceClaimView> = Vec::new();
        for entry in &pod.device_claims {
            let (name, generated) = match entry {
                PodClaim::Named(name) => (name, false),
                PodClaim::Generated(name) => (name, true),
                PodClaim::NotNeeded => continue,
                PodClaim::Pending => {
                    return Err(ClaimError::NotCreated { pod: pod.id.clone() });
                }
            };
            let key = (pod.id.namespace.clone(), name.clone());
            let full_name = || format!("{}/{name}", pod.id.namespace);
            let claim = self.claims.get(&key);
            let claim = claim.ok_or_else(|| ClaimError::NotFound { claim: full_name() })?;
            if claim.metadata.terminating() {
                return Err(ClaimError::Terminating { claim: name.to_string() });
            }
            if generated && !claim.metadata.controlled_by(&pod.id.uid) {
                return Err(ClaimError::NotOwned { claim: full_name(), pod: pod.id.clone() });
            }
            if !claims.iter().any(|other| other.metadata.uid == claim.metadata.uid) {
                claims.push(claim);
            }
        }
        Ok(claims)
    }

    /// Reports whether the Pod uses the claim of this name.
    pub(crate) fn uses(pod: &Pod, namespace: &str, name: &str) -> bool {
        *pod.id.namespace == *namespace
            && pod.device_claims.iter().any(|claim| match claim {
                PodClaim::Named(own) | PodClaim::Generated(own) => **own == *name,
                PodClaim::NotNeeded | PodClaim::Pending => false,
            })
    }

    /// Prepares the evaluation of nodes for the Pod, or returns the reason why it can run nowhere.
    pub(crate) fn evaluator(&self, pod: &Pod) -> Result<ClaimEvaluator<'_>, ClaimError> {
        let mut evaluator = ClaimEvaluator {
            devices: self,
            allocated: Vec::new(),
            pending: Vec::new(),
            in_use: DevicesInUse::default(),
            effort: Effort::default(),
        };
        let reader = Reader { classes: &self.classes, compiled: &self.compiled };
        for claim in self.of_pod(pod)? {
            let Some(allocation) = &claim.status.allocation else {
                if self.in_flight.contains_key(&claim.metadata.uid) {
                    return Err(ClaimError::InFlight { claim: claim.metadata.key() });
                }
                evaluator.pending.push(reader.read(claim)?);
                continue;
            };
            let nodes = match &allocation.node_selector {
                None => None,
                Some(selector) => Some(node_selector(selector).ok_or_else(|| {
                    ClaimError::NodeSelector { claim: claim.metadata.name.clone() }
                })?),
            };
            evaluator.allocated.push(AllocatedClaim { claim, nodes });
        }
        if !evaluator.pending.is_empty() {
            self.claims
                .values()
                .filter_map(|claim| claim.status.allocation.as_ref())
                .chain(self.in_flight.values().map(|flying| &flying.allocation))
                .for_each(|allocation| evaluator.in_use.add(allocation));
        }
        Ok(evaluator)
    }

    /// Returns the allocations to write for the Pod on a node that passed the filters.
    pub(crate) fn choose(&self, pod: &Pod, node: &Node) -> Option<Vec<DeviceBinding>> {
        let mut out = Vec::new();
        if pod.device_claims.is_empty() {
            return Some(out);
        }
        let evaluator = self.evaluator(pod).ok()?;
        let allocations = evaluator.allocate(node).ok()?;
        let mut binding = |claim: &ResourceClaimView, allocation| {
            let (claim, uid) = (&*claim.metadata.name, &*claim.metadata.uid);
            let (claim, uid) = (claim.into(), uid.into());
            out.push(DeviceBinding { claim, uid, allocation });
        };
        evaluator.allocated.iter().for_each(|allocated| binding(allocated.claim, None));
        evaluator
            .pending
            .iter()
            .zip(allocations)
            .for_each(|(pending, allocation)| binding(pending.claim, Some(allocation)));
        Some(out)
    }

    /// Reserves the chosen devices for the Pod.
    pub(crate) fn assume(&mut self, pod: &Pod, chosen: &[DeviceBinding]) {
        for binding in chosen {
            if let Some(allocation) = binding.allocation.clone() {
                let flying = InFlight { pod: pod.id.uid.clone(), allocation, written: None };
                self.in_flight.insert(binding.uid.to_string(), flying);
            }
        }
    }

    /// Notes that an allocation was written. Its devices count as used until the API shows this version of the claim.
    pub(crate) fn record_write(&mut self, uid: &str, resource_version: &str) {
        let latest = self.claims.values().find(|claim| *claim.metadata.uid == *uid).map(version);
        let written = resource_version.parse().unwrap_or(u64::MAX);
        if latest.is_none_or(|latest| latest >= written) {
            self.in_flight.remove(uid);
        } else if let Some(flying) = self.in_flight.get_mut(uid) {
            flying.written = Some(written);
        }
    }

    /// Releases the allocations of a Pod that were not written, because it is deleted or gets another node.
    pub(crate) fn forget(&mut self, pod: &str) {
        self.in_flight.retain(|_, flying| *flying.pod != *pod || flying.written.is_some());
    }

    /// Takes over the allocations in flight of an earlier state: those of these Pods, and written ones.
    pub(crate) fn carry_over(&mut self, old: &Devices, pods: &HashSet<&str>) {
        let in_flight = old.in_flight.iter();
        let in_flight = in_flight.filter(|(_, f)| f.written.is_some() || pods.contains(&*f.pod));
        self.in_flight.extend(in_flight.map(|(uid, flying)| (uid.clone(), flying.clone())));
    }

    /// Returns the progress of a Pod's claims. Some devices become ready only after their allocation.
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
                Err(error) => return Progress::Refused(error.to_string()),
            }
        }
        progress
    }
}

/// Reports whether all devices of a claim are ready, by the binding conditions that the drivers set.
fn readiness(claim: &ResourceClaimView) -> Result<bool, ClaimError> {
    let Some(allocation) = &claim.status.allocation else { return Ok(false) };
    let bound = allocation.devices.results.iter().filter(|d| !d.binding_conditions.is_empty());
    for device in bound {
        let mut reported = claim.status.devices.iter();
        let reported = reported.find(|reported| {
            reported.device == device.device
                && reported.driver == device.driver
                && reported.pool == device.pool
        });
        let Some(reported) = reported else { return Ok(false) };
        let is_true = |name: &str| {
            reported.conditions.iter().find(|c| *c.r#type == *name && &*c.status == "True")
        };
        let mut failures = device.binding_failure_conditions.iter();
        if let Some(failed) = failures.find_map(|name| is_true(name)) {
            return Err(ClaimError::Binding {
                claim: claim.metadata.name.clone(),
                reason: failed.reason.clone(),
                message: failed.message.clone(),
            });
        }
        if !device.binding_conditions.iter().all(|name| is_true(name).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A claim that is allocated.
struct AllocatedClaim<'a> {
    claim: &'a ResourceClaimView,
    nodes: Option<NodeSelector>,
}

/// A Pod's claims, prepared for the evaluation of nodes.
pub(crate) struct ClaimEvaluator<'a> {
    devices: &'a Devices,
    allocated: Vec<AllocatedClaim<'a>>,
    pending: Vec<PendingClaim<'a>>,
    in_use: DevicesInUse<'a>,
    effort: Effort,
}

impl<'a> ClaimEvaluator<'a> {
    /// Reports whether the claims restrict no node.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.allocated.is_empty()
    }

    /// Returns the claims whose allocated devices cannot be used on the node.
    pub(crate) fn unavailable(&self, node: &Node) -> impl Iterator<Item = &'a ResourceClaimView> {
        let excluded = |allocated: &&AllocatedClaim<'a>| {
            allocated.nodes.as_ref().is_some_and(|nodes| !nodes.matches(node))
                || readiness(allocated.claim).is_err()
        };
        self.allocated.iter().filter(excluded).map(|allocated| allocated.claim)
    }

    /// Returns the allocations that the pending claims would get on the node.
    pub(crate) fn allocate(&self, node: &Node) -> Result<Vec<Allocation>, Stop> {
        if self.pending.is_empty() {
            return Ok(Vec::new());
        }
        let pools = self.devices.pools.of(node);
        Search::new(node, pools, &self.pending, &self.in_use, &self.effort).run()
    }

    /// Scores the node by how early in the lists the allocated alternatives are.
    pub(crate) fn preference(&self, node: &Node) -> i64 {
        let allocations = self.allocate(node).unwrap_or_default();
        let new = self.pending.iter().map(|pending| pending.claim).zip(&allocations);
        let had = self.allocated.iter();
        let had = had.filter_map(|allocated| {
            Some((allocated.claim, allocated.claim.status.allocation.as_ref()?))
        });
        new.chain(had).map(|(claim, allocation)| rank(claim, allocation)).sum()
    }
}

/// The largest number of alternatives of a request (`FirstAvailableDeviceRequestMaxSize`).
const MAX_ALTERNATIVES: i64 = 8;

fn rank(claim: &ResourceClaimView, allocation: &Allocation) -> i64 {
    let listed = claim.spec.devices.requests.iter().flat_map(|request| {
        request.first_available.iter().enumerate().map(move |(at, alternative)| {
            (MAX_ALTERNATIVES - at as i64, format!("{}/{}", request.name, alternative.name))
        })
    });
    let is_allocated = |name: &str| allocation.devices.results.iter().any(|d| *d.request == *name);
    listed.filter(|(_, name)| is_allocated(name)).map(|(rank, _)| rank).sum()
}
