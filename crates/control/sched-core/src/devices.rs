//! Dynamic resource allocation: the devices of Pods' claims, and the devices that they may get on a node.
//!
//! Claims, classes and slices are stored as the API has them. Pools and the values for CEL are derived when slices
//! change. An allocation that was decided but is not visible in the API yet is in flight; its devices count as used.

mod allocation;
mod capacity;
mod error;
mod extended;
mod requests;
mod search;
mod selectors;
mod slices;
pub(crate) mod view;

pub use self::extended::{ClassRequest, EXTENDED_RESOURCE_CLAIM, ExtendedClaim, RequestMapping};
pub(crate) use self::{
    error::ClaimError,
    search::{SearchError, Stop},
};

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
    sync::Arc,
};

use self::{
    extended::ServedRequest,
    requests::{PendingClaim, Reader},
    search::{DevicesInUse, Effort, Search},
    selectors::SelectorCache,
    slices::{Pools, node_selector},
    view::{
        Allocation, DeviceClassView, DeviceTaintRuleView, ResourceClaimView, ResourceSliceView,
    },
};
use crate::{
    maps::set,
    node::Node,
    nodeaffinity::NodeSelector,
    pod::{ExtendedRequest, Pod, PodClaim},
    sym::{Sym, SymMap},
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
    /// The claim's name; empty for a claim that the scheduler has to create.
    pub claim: Box<str>,
    /// The claim's uid. A placeholder stands for that of a claim that the scheduler has to create.
    pub uid: Box<str>,
    /// The allocation to write; `None` if the claim is allocated already.
    pub allocation: Option<Allocation>,
    /// The contents of the claim for the Pod's extended resources; `None` for a claim that the Pod names.
    pub extended: Option<ExtendedClaim>,
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
    /// The classes that serve extended resources.
    by_resource: SymMap<Box<str>>,
    /// The names of the existing claims for extended resources, by the namespace and the uid of the Pod.
    of_extended: HashMap<Key, Box<str>>,
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
        let old = set(&mut self.claims, (namespace.clone(), name.into()), view.cloned());
        // Users of other namespaces can create claims that name the Pod.
        let pod_of = |claim: &ResourceClaimView| -> Option<Key> {
            Some((namespace.clone(), extended::pod_of(claim)?.into()))
        };
        if let Some(pod) = old.as_ref().and_then(pod_of)
            && self.of_extended.get(&pod).is_some_and(|own| **own == *name)
        {
            self.of_extended.remove(&pod);
        }
        if let Some(pod) = view.and_then(pod_of) {
            self.of_extended.insert(pod, name.into());
        }
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
        self.by_resource = extended::classes_by_resource(&self.classes);
    }

    /// Reports whether devices of a class serve the extended resource.
    pub(crate) fn serves(&self, resource: Sym) -> bool {
        self.by_resource.contains_key(&resource)
    }

    /// Reports whether the Pod uses claims or extended resources that devices serve.
    pub(crate) fn concerns(&self, pod: &Pod) -> bool {
        !pod.device_claims.is_empty() || self.serves_any(pod)
    }

    /// Reports whether the Pod uses extended resources that devices serve.
    fn serves_any(&self, pod: &Pod) -> bool {
        pod.extended_requests.iter().any(|request| self.serves(request.symbol))
    }

    /// Returns the Pod's requests for extended resources that devices serve on the node, by their position in the Pod.
    /// The node's device plugins serve the others.
    fn served_on(&self, pod: &Pod, node: &Node) -> Vec<usize> {
        let is_served = |request: &ExtendedRequest| {
            node.allocatable.extended(request.symbol) == 0 && self.serves(request.symbol)
        };
        let requests = pod.extended_requests.iter().enumerate();
        requests.filter(|(_, request)| is_served(request)).map(|(at, _)| at).collect()
    }

    /// Returns the claim for some of the Pod's requests for extended resources.
    fn extended_claim(&self, pod: &Pod, served: &[usize]) -> ExtendedClaim {
        let requests = served.iter().filter_map(|at| pod.extended_requests.get(*at));
        let requests: Vec<_> = requests
            .filter_map(|request| {
                let class = self.by_resource.get(&request.symbol)?;
                Some(ServedRequest { request, class })
            })
            .collect();
        extended::claim_for(&requests)
    }

    pub(crate) fn set_taint_rule(&mut self, name: &str, view: Option<&DeviceTaintRuleView>) {
        self.pools.set_rule(name, view);
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
    pub(crate) fn evaluator<'a>(&'a self, pod: &'a Pod) -> Result<ClaimEvaluator<'a>, ClaimError> {
        let namespace = &pod.id.namespace;
        let key: Key = (namespace.clone(), Box::from(&*pod.id.uid));
        let own = self.of_extended.get(&key);
        let own = own.and_then(|name| self.claims.get(&(namespace.clone(), name.clone())));
        let own =
            own.filter(|claim| claim.status.allocation.is_some() && !claim.metadata.terminating());
        let mut evaluator = ClaimEvaluator {
            devices: self,
            pod,
            allocated: Vec::new(),
            pending: Vec::new(),
            extended: self.extended_state(pod, own)?,
            pending_on: RefCell::default(),
            in_use: DevicesInUse::default(),
            effort: Effort::default(),
        };
        let mut claims = self.of_pod(pod)?;
        claims.extend(own.filter(|_| evaluator.extended == ExtendedState::Allocated));
        for claim in claims {
            let Some(allocation) = &claim.status.allocation else {
                if self.in_flight.contains_key(&claim.metadata.uid) {
                    return Err(ClaimError::InFlight { claim: claim.metadata.key() });
                }
                evaluator.pending.push(Rc::new(self.reader().read(Cow::Borrowed(claim))?));
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
        if !evaluator.pending.is_empty() || evaluator.extended == ExtendedState::Pending {
            self.claims
                .values()
                .filter_map(|claim| claim.status.allocation.as_ref())
                .chain(self.in_flight.values().map(|flying| &flying.allocation))
                .for_each(|allocation| evaluator.in_use.add(allocation));
        }
        Ok(evaluator)
    }

    fn reader(&self) -> Reader<'_> {
        Reader { classes: &self.classes, compiled: &self.compiled }
    }

    /// Returns the state of the claim for the Pod's extended resources. `own` is the claim of an earlier attempt.
    fn extended_state(
        &self,
        pod: &Pod,
        own: Option<&ResourceClaimView>,
    ) -> Result<ExtendedState, ClaimError> {
        if !self.serves_any(pod) {
            return Ok(ExtendedState::Unneeded);
        }
        if own.is_some() {
            return Ok(ExtendedState::Allocated);
        }
        let claim = extended::placeholder_uid(pod);
        if self.in_flight.contains_key(&claim) {
            return Err(ClaimError::InFlight { claim });
        }
        Ok(ExtendedState::Pending)
    }

    /// Returns the allocations to write for the Pod on a node that passed the filters.
    pub(crate) fn choose(&self, pod: &Pod, node: &Node) -> Option<Vec<DeviceBinding>> {
        let mut out = Vec::new();
        if !self.concerns(pod) {
            return Some(out);
        }
        let evaluator = self.evaluator(pod).ok()?;
        let allocations = evaluator.allocate(node).ok()?;
        let mut binding = |claim: &ResourceClaimView, allocation| {
            let meta = &claim.metadata;
            let is_extended = *meta.uid == *extended::placeholder_uid(pod)
                || extended::pod_of(claim).is_some_and(|uid| *uid == *pod.id.uid);
            out.push(DeviceBinding {
                claim: meta.name.as_str().into(),
                uid: meta.uid.as_str().into(),
                allocation,
                extended: is_extended.then(|| self.extended_claim(pod, &self.served_on(pod, node))),
            });
        };
        evaluator.allocated.iter().for_each(|allocated| binding(allocated.claim, None));
        let pending = evaluator.pending_on(node).ok()?;
        let pending = pending.iter().zip(allocations);
        pending.for_each(|(pending, allocation)| binding(&pending.claim, Some(allocation)));
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

    /// Notes that the scheduler created a claim, which gives the claim's reservation its uid.
    pub(crate) fn record_creation(&mut self, placeholder: &str, uid: &str) {
        if let Some(flying) = self.in_flight.remove(placeholder) {
            self.in_flight.insert(uid.to_owned(), flying);
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

/// The state of the claim for a Pod's extended resources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtendedState {
    /// The Pod needs none.
    Unneeded,
    /// An earlier attempt has allocated the claim.
    Allocated,
    /// The claim is still to be created. Its requests depend on the node.
    Pending,
}

/// The claims to allocate on a node.
type PendingClaims<'a> = Rc<[Rc<PendingClaim<'a>>]>;

/// A Pod's claims, prepared for the evaluation of nodes.
pub(crate) struct ClaimEvaluator<'a> {
    devices: &'a Devices,
    pod: &'a Pod,
    allocated: Vec<AllocatedClaim<'a>>,
    pending: Vec<Rc<PendingClaim<'a>>>,
    extended: ExtendedState,
    /// The claims to allocate, by the requests for extended resources that devices serve on a node. `None` if they are
    /// too large.
    pending_on: RefCell<HashMap<Vec<usize>, Option<PendingClaims<'a>>>>,
    in_use: DevicesInUse<'a>,
    effort: Effort,
}

impl<'a> ClaimEvaluator<'a> {
    /// Reports whether the claims restrict no node.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.allocated.is_empty()
            && self.extended == ExtendedState::Unneeded
    }

    /// Returns the claims to allocate on the node.
    fn pending_on(&self, node: &Node) -> Result<PendingClaims<'a>, Stop> {
        let served = match self.extended {
            ExtendedState::Pending => self.devices.served_on(self.pod, node),
            ExtendedState::Unneeded | ExtendedState::Allocated => Vec::new(),
        };
        let mut cache = self.pending_on.borrow_mut();
        let claims = cache.entry(served).or_insert_with_key(|served| {
            let mut claims = self.pending.clone();
            if !served.is_empty() {
                let claim = self.devices.extended_claim(self.pod, served);
                let view = extended::view(self.pod, &claim);
                claims.push(Rc::new(self.devices.reader().read(Cow::Owned(view)).ok()?));
            }
            Some(claims.into())
        });
        claims.clone().ok_or(Stop::Unmet)
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
        let pending = self.pending_on(node)?;
        if pending.is_empty() {
            return Ok(Vec::new());
        }
        let pools = self.devices.pools.of(node);
        Search::new(node, pools, &pending, &self.in_use, &self.effort).run()
    }

    /// Scores the node by how early in the lists the allocated alternatives are.
    pub(crate) fn preference(&self, node: &Node) -> i64 {
        let allocations = self.allocate(node).unwrap_or_default();
        let new = self.pending.iter().map(|pending| &*pending.claim).zip(&allocations);
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
