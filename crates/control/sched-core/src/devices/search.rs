//! Searches for devices of a node that meet all requests of a Pod's claims, by backtracking. The first solution wins.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    rc::Rc,
    sync::Arc,
};

use api_meta::Quantity;

use crate::{
    devices::{
        allocation,
        capacity::{self, Amounts},
        requests::{Alternative, Count, MAX_RESULTS, PendingClaim},
        selectors::SelectorError,
        slices::{Device, Flaw, Pool, Slice},
        view::{Allocation, DeviceAttributeView, DeviceConstraintView, DeviceTaintView},
    },
    node::Node,
};

/// The number of candidates that are checked for one Pod on all nodes, and the CEL cost limit.
const MAX_STEPS: u64 = 2_000_000;
const MAX_COST: u64 = 50_000_000;
/// The largest number of devices of one Pod, which limits the recursion depth.
const MAX_DEPTH: usize = 512;

/// Driver, pool and device.
pub(super) type Id<'a> = (&'a str, &'a str, &'a str);

/// The devices and capacities that allocated claims use.
#[derive(Default)]
pub(super) struct DevicesInUse<'a> {
    exclusive: HashSet<Id<'a>>,
    shared: HashMap<Id<'a>, HashMap<&'a str, Quantity>>,
}

impl<'a> DevicesInUse<'a> {
    /// Adds the devices of an allocation. Devices with admin access do not count.
    pub(super) fn add(&mut self, allocation: &'a Allocation) {
        for device in &allocation.devices.results {
            let id = (&*device.driver, &*device.pool, &*device.device);
            if device.admin_access == Some(true) {
                continue;
            }
            if device.share_id.is_none() {
                self.exclusive.insert(id);
                continue;
            }
            let sums = self.shared.entry(id).or_default();
            for (name, amount) in &device.consumed_capacity {
                *sums.entry(name).or_default() += *amount;
            }
        }
    }

    fn has_any(&self, id: &Id<'_>) -> bool {
        self.exclusive.contains(id) || self.shared.contains_key(id)
    }
}

/// The remaining search budget for one Pod, and selector results, which do not depend on the node.
pub(super) struct Effort {
    steps: Cell<u64>,
    cost: Cell<u64>,
    /// The result of an alternative's selectors for a device, by their addresses.
    matches: RefCell<HashMap<(usize, usize), bool>>,
}

impl Default for Effort {
    fn default() -> Self {
        let (steps, cost) = (Cell::new(MAX_STEPS), Cell::new(MAX_COST));
        Self { steps, cost, matches: RefCell::default() }
    }
}

/// The reason why a search found nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The node lacks matching devices.
    Unmet,
    /// The node lacks matching devices, and one of its pools is inconsistent.
    Unsound,
    /// A claim, a class or a pool is invalid, so no node may be chosen.
    Invalid(SearchError),
    /// The search budget is used up.
    Exhausted,
}

/// The error of a claim, a class or a pool during a search.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SearchError {
    #[error("a pod with more than {MAX_DEPTH} devices; ask for fewer")]
    TooManyDevices,
    #[error(
        "claim {claim}, request {request}: asks for all devices, but resource pool {pool} is currently {state}"
    )]
    Pool { claim: String, request: Box<str>, pool: String, state: &'static str },
    #[error("{selector}: {source}")]
    Selector { selector: String, source: SelectorError },
    #[error("node {node}: timed out trying to allocate devices")]
    Exhausted { node: Arc<str> },
}

/// A device that the node can use.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    pool: &'a Pool,
    slice: &'a Slice,
    device: &'a Device,
}

impl<'a> Candidate<'a> {
    fn id(&self) -> Id<'a> {
        (&self.pool.id.0, &self.pool.id.1, &self.device.view.name)
    }
}

/// The position of an alternative of a request among the pending claims.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Position {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// A candidate that the search has chosen.
struct Choice {
    position: Position,
    candidate: usize,
    /// The consumed capacity of a shareable device.
    amounts: Option<Amounts>,
    /// `true` if the device is used exclusively.
    alone: bool,
    /// `true` if the device consumes counters.
    draws: bool,
}

/// The remaining counters of a pool, by counter set and counter.
type Counters<'a> = HashMap<(&'a str, &'a str), Quantity>;

pub(super) struct Search<'a, 'w> {
    node: &'a Node,
    pending: &'w [Rc<PendingClaim<'a>>],
    in_use: &'w DevicesInUse<'a>,
    effort: &'w Effort,
    pools: Vec<&'a Pool>,
    candidates: Vec<Candidate<'a>>,
    /// The number of exclusive uses of each candidate in this search.
    used: Vec<u32>,
    choices: Vec<Choice>,
    counters: HashMap<*const Pool, Counters<'a>>,
    /// The candidates of requests for all devices.
    all: HashMap<Position, Vec<usize>>,
}

impl<'a, 'w> Search<'a, 'w> {
    pub(super) fn new(
        node: &'a Node,
        pools: Vec<&'a Pool>,
        pending: &'w [Rc<PendingClaim<'a>>],
        in_use: &'w DevicesInUse<'a>,
        effort: &'w Effort,
    ) -> Self {
        let sound = pools.iter().filter(|pool| pool.flaw.is_none());
        let candidates: Vec<_> = sound
            .flat_map(|pool| pool.slices().map(move |slice| (*pool, slice)))
            .flat_map(|(pool, slice)| {
                slice.devices_for(node).map(move |device| Candidate { pool, slice, device })
            })
            .collect();
        Self {
            used: vec![0; candidates.len()],
            node,
            pending,
            in_use,
            effort,
            pools,
            candidates,
            choices: Vec::new(),
            counters: HashMap::new(),
            all: HashMap::new(),
        }
    }

    /// Returns an allocation for each claim.
    pub(super) fn run(mut self) -> Result<Vec<Allocation>, Stop> {
        if self.next(0, 0)? {
            return Ok(self.allocations());
        }
        let unsound = self.pools.iter().any(|pool| pool.flaw == Some(Flaw::Invalid));
        Err(if unsound { Stop::Unsound } else { Stop::Unmet })
    }

    /// Satisfies this request and all later ones.
    fn next(&mut self, mut claim: usize, mut request: usize) -> Result<bool, Stop> {
        while self.pending.get(claim).is_some_and(|pending| request >= pending.requests.len()) {
            (claim, request) = (claim + 1, 0);
        }
        let Some(pending) = self.pending.get(claim) else { return Ok(true) };
        for alternative in 0..pending.requests[request].alternatives.len() {
            if self.device(Position { claim, request, alternative }, 0, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Chooses the next device for a request that has `done` devices, among the candidates at `from` and later.
    fn device(&mut self, at: Position, done: usize, from: usize) -> Result<bool, Stop> {
        let pending: &'w PendingClaim<'a> = &self.pending[at.claim];
        let alternative = &pending.requests[at.request].alternatives[at.alternative];
        let all = match alternative.count {
            Count::All => Some(self.all_of(at, pending, alternative)?),
            Count::Exactly(_) => None,
        };
        let need = match (&all, alternative.count) {
            (_, Count::Exactly(count)) => count,
            (Some(all), _) if !all.is_empty() => all.len(),
            _ => return Ok(false),
        };
        if done == need {
            return self.next(at.claim, at.request + 1);
        }
        if self.choices.len() >= MAX_DEPTH {
            return Err(Stop::Invalid(SearchError::TooManyDevices));
        }
        let has = self.choices.iter().filter(|choice| choice.position.claim == at.claim).count();
        if has + (need - done) > MAX_RESULTS {
            return Ok(false);
        }
        let candidates = match all {
            Some(all) => vec![all[done]],
            None => (from..self.candidates.len()).collect(),
        };
        for candidate in candidates {
            self.step()?;
            if !self.take(at, alternative, candidate)? {
                continue;
            }
            if self.device(at, done + 1, candidate + 1)? {
                return Ok(true);
            }
            self.undo();
        }
        Ok(false)
    }

    fn step(&self) -> Result<(), Stop> {
        let left = self.effort.steps.get().checked_sub(1).ok_or(Stop::Exhausted)?;
        self.effort.steps.set(left);
        Ok(())
    }

    /// Returns all matching devices with enough capacity for a request in mode `All`, also those in use.
    fn all_of(
        &mut self,
        at: Position,
        pending: &PendingClaim<'a>,
        alternative: &Alternative<'a>,
    ) -> Result<Vec<usize>, Stop> {
        if let Some(candidates) = self.all.get(&at) {
            return Ok(candidates.clone());
        }
        for pool in &self.pools {
            let state = match pool.flaw {
                Some(Flaw::Incomplete) => "being updated",
                Some(Flaw::Invalid) => "invalid",
                None => continue,
            };
            return Err(Stop::Invalid(SearchError::Pool {
                claim: pending.label.clone(),
                request: alternative.name.clone(),
                pool: format!("{}/{}", pool.id.0, pool.id.1),
                state,
            }));
        }
        let mut all = Vec::new();
        for at in 0..self.candidates.len() {
            self.step()?;
            let device = self.candidates[at];
            if self.matches(alternative, &device)?
                && self.amounts(alternative, &device, None).is_some()
            {
                all.push(at);
            }
        }
        self.all.insert(at, all.clone());
        Ok(all)
    }

    /// Reports whether the selectors of class and request match the device.
    fn matches(
        &self,
        alternative: &Alternative<'a>,
        candidate: &Candidate<'a>,
    ) -> Result<bool, Stop> {
        let address = |of: *const ()| of as usize;
        let key = (
            address(std::ptr::from_ref(alternative).cast()),
            address(std::ptr::from_ref(candidate.device).cast()),
        );
        if let Some(cached) = self.effort.matches.borrow().get(&key) {
            return Ok(*cached);
        }
        let mut matches = true;
        for (location, selector) in &alternative.selectors {
            let failed = |source| {
                Stop::Invalid(SearchError::Selector { selector: location.clone(), source })
            };
            let value = candidate.device.cel_value.as_ref();
            let value = value.map_err(|error| failed(error.clone().into()))?;
            let (result, cost) = selector.matches(value);
            let left = self.effort.cost.get().checked_sub(cost).ok_or(Stop::Exhausted)?;
            self.effort.cost.set(left);
            if !result.map_err(failed)? {
                matches = false;
                break;
            }
        }
        self.effort.matches.borrow_mut().insert(key, matches);
        Ok(matches)
    }

    /// Returns the capacity that the device would give to the request, beside other users.
    fn amounts(
        &self,
        alternative: &Alternative<'a>,
        candidate: &Candidate<'a>,
        at: Option<usize>,
    ) -> Option<Amounts> {
        let shared = self.in_use.shared.get(&candidate.id());
        let used = |name: &str| {
            let others = shared.and_then(|shared| shared.get(name)).copied().unwrap_or_default();
            let own = self.choices.iter().filter(|choice| Some(choice.candidate) == at);
            let own = own.filter_map(|choice| choice.amounts.as_ref()?.get(name).copied());
            own.fold(others, |sum, amount| sum + amount)
        };
        let request = alternative.view.capacity.as_ref();
        capacity::consumed(&candidate.device.view.capacity, request, used)
    }

    /// Chooses a candidate if that is allowed.
    fn take(
        &mut self,
        position: Position,
        alternative: &Alternative<'a>,
        at: usize,
    ) -> Result<bool, Stop> {
        let candidate = self.candidates[at];
        let device = &candidate.device.view;
        let shareable = candidate.device.is_shareable();
        if !self.is_free(position.claim, alternative, at)
            || !self.matches(alternative, &candidate)?
        {
            return Ok(false);
        }
        let Some(amounts) = self.amounts(alternative, &candidate, Some(at)) else {
            return Ok(false);
        };
        let keeps_off = |taint: &DeviceTaintView| {
            matches!(&*taint.effect, "NoExecute" | "NoSchedule")
                && !alternative
                    .view
                    .tolerations
                    .iter()
                    .any(|toleration| toleration.tolerates(taint))
        };
        if candidate.device.taints().any(keeps_off) || !self.satisfies(position, alternative, at) {
            return Ok(false);
        }
        // A device that is already shared has already consumed its counters.
        let shared = self.in_use.shared.contains_key(&candidate.id())
            || self.choices.iter().any(|choice| choice.candidate == at);
        let draws = !(device.consumes_counters.is_empty() || shareable && shared);
        if draws && !self.draw(&candidate) {
            return Ok(false);
        }
        let alone = !shareable && !alternative.admin;
        self.used[at] += u32::from(alone);
        let (candidate, amounts) = (at, shareable.then_some(amounts));
        self.choices.push(Choice { position, candidate, amounts, alone, draws });
        Ok(true)
    }

    /// Reports whether the device is not used exclusively. Within one claim, only a shareable device may be chosen
    /// twice. Admin access ignores other claims.
    fn is_free(&self, claim: usize, alternative: &Alternative<'a>, at: usize) -> bool {
        let candidate = self.candidates[at];
        let twice = || {
            let mut own = self.choices.iter().filter(|choice| choice.position.claim == claim);
            own.any(|choice| choice.candidate == at)
        };
        let in_use = self.used[at] > 0 || self.in_use.exclusive.contains(&candidate.id());
        (alternative.admin || !in_use) && (candidate.device.is_shareable() || !twice())
    }

    /// Reports whether the claim's constraints hold with the device added. More devices cannot repair a violation.
    fn satisfies(&self, position: Position, alternative: &Alternative<'a>, at: usize) -> bool {
        let of = &self.pending[position.claim];
        let concerns = |constraint: &DeviceConstraintView, request: usize, full: &str| {
            let named = |name: &str| constraint.requests.iter().any(|own| **own == *name);
            constraint.requests.is_empty() || named(&of.requests[request].name) || named(full)
        };
        of.claim.spec.devices.constraints.iter().all(|constraint| {
            if !concerns(constraint, position.request, &alternative.name) {
                return true;
            }
            let matching = constraint.match_attribute.as_deref();
            let name = matching.or(constraint.distinct_attribute.as_deref()).unwrap_or_default();
            let Some(own) = attribute(&self.candidates[at], name) else { return false };
            let mut others = self.choices.iter().filter(|choice| {
                let Position { claim, request, alternative } = choice.position;
                let requests = &of.requests;
                claim == position.claim
                    && concerns(
                        constraint,
                        request,
                        &requests[request].alternatives[alternative].name,
                    )
            });
            others.all(|choice| {
                let same = attribute(&self.candidates[choice.candidate], name) == Some(own);
                same == matching.is_some()
            })
        })
    }

    /// Consumes the device's counters if the pool has enough left of each.
    fn draw(&mut self, candidate: &Candidate<'a>) -> bool {
        let (pool, in_use) = (candidate.pool, self.in_use);
        let left = self.counters.entry(pool).or_insert_with(|| left(pool, in_use));
        // A device may name a counter set twice.
        let mut sums: Counters<'a> = HashMap::new();
        consumed_counters(candidate.device)
            .for_each(|(key, amount)| *sums.entry(key).or_default() += amount);
        let enough = sums.iter().all(|(key, amount)| left.get(key).is_some_and(|l| amount <= l));
        if enough {
            sums.iter().for_each(|(key, amount)| *left.entry(*key).or_default() -= *amount);
        }
        enough
    }

    /// Undoes the last choice.
    fn undo(&mut self) {
        let Some(choice) = self.choices.pop() else { return };
        let candidate = self.candidates[choice.candidate];
        self.used[choice.candidate] -= u32::from(choice.alone);
        if choice.draws
            && let Some(left) = self.counters.get_mut(&std::ptr::from_ref(candidate.pool))
        {
            consumed_counters(candidate.device)
                .for_each(|(key, amount)| *left.entry(key).or_default() += amount);
        }
    }

    fn allocations(&self) -> Vec<Allocation> {
        let of = |(claim, pending): (usize, &Rc<PendingClaim<'a>>)| {
            let chosen = self.choices.iter().filter(|choice| choice.position.claim == claim);
            let chosen: Vec<_> = chosen
                .map(|choice| {
                    let candidate = &self.candidates[choice.candidate];
                    let Position { request, alternative, .. } = choice.position;
                    allocation::ChosenDevice {
                        request,
                        alternative: &pending.requests[request].alternatives[alternative],
                        pool: candidate.pool,
                        slice: candidate.slice,
                        device: candidate.device,
                        amounts: choice.amounts.as_ref(),
                    }
                })
                .collect();
            allocation::build(pending, &chosen, self.node)
        };
        self.pending.iter().enumerate().map(of).collect()
    }
}

/// Returns the counters that a device consumes, with amounts.
fn consumed_counters(device: &Device) -> impl Iterator<Item = ((&str, &str), Quantity)> {
    device.view.consumes_counters.iter().flat_map(|from| {
        from.counters.iter().map(|(name, c)| ((&*from.counter_set, &**name), c.value))
    })
}

/// Returns the counters of a pool that remain beside the devices in use, whatever their node.
fn left<'a>(pool: &'a Pool, in_use: &DevicesInUse<'a>) -> Counters<'a> {
    let mut left: Counters<'a> = HashMap::new();
    for (set, counters) in pool.counters() {
        left.extend(counters.iter().map(|(name, amount)| ((&**set, &**name), *amount)));
    }
    for device in pool.slices().flat_map(|slice| &slice.devices) {
        if in_use.has_any(&(&*pool.id.0, &*pool.id.1, &*device.view.name)) {
            consumed_counters(device)
                .for_each(|(key, amount)| *left.entry(key).or_default() -= amount);
        }
    }
    left
}

/// Returns an attribute by its qualified name. Attributes in the driver's own domain may lack the prefix.
fn attribute<'a>(candidate: &Candidate<'a>, name: &str) -> Option<&'a DeviceAttributeView> {
    let attributes = &candidate.device.view.attributes;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        (*domain == *candidate.pool.id.0).then(|| attributes.get(id)).flatten()
    })
}
