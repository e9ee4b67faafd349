//! Finding the devices of a node that meet all requests of a Pod's claims: one candidate after the other is taken, and
//! given back when what is left cannot be met. The first solution counts.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
};

use api_meta::Quantity;

use crate::{
    devices::{
        allocation,
        capacity::{self, Amounts},
        requests::{Alternative, Count, MAX_RESULTS, Wanted},
        slices::{Device, Flaw, Pool, Slice},
        view::{Allocation, DeviceAttributeView, DeviceConstraintView, DeviceTaintView},
    },
    node::Node,
};

/// How many candidates may be looked at for one Pod on all nodes, and how much expressions may cost.
const MAX_STEPS: u64 = 2_000_000;
const MAX_COST: u64 = 50_000_000;
/// How many devices one Pod may have: each is a step deeper.
const MAX_DEPTH: usize = 512;

/// Driver, pool and device.
pub(super) type Id<'a> = (&'a str, &'a str, &'a str);

/// What claims have already.
#[derive(Default)]
pub(super) struct Taken<'a> {
    exclusive: HashSet<Id<'a>>,
    shared: HashMap<Id<'a>, HashMap<&'a str, Quantity>>,
}

impl<'a> Taken<'a> {
    /// Counts what an allocation has. Admin access takes nothing from others.
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

/// What all searches for one Pod may still do, and what they found out about devices whatever the node.
pub(super) struct Effort {
    steps: Cell<u64>,
    cost: Cell<u64>,
    /// Whether an alternative's selectors take a device, by their addresses.
    matches: RefCell<HashMap<(usize, usize), bool>>,
}

impl Default for Effort {
    fn default() -> Self {
        let (steps, cost) = (Cell::new(MAX_STEPS), Cell::new(MAX_COST));
        Self { steps, cost, matches: RefCell::default() }
    }
}

/// Why a node has nothing for a Pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// There are not the devices.
    Unmet,
    /// Nor are there, and a pool of the node contradicts itself.
    Unsound,
    /// Something is wrong with a claim, a class or a pool, so that no node is to be taken.
    Wrong(String),
    /// It has done what it may.
    Exhausted,
}

/// A device of the node.
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

/// A candidate that is taken.
struct Choice {
    claim: usize,
    request: usize,
    alternative: usize,
    candidate: usize,
    /// Of a device that others may share: what this one gets.
    amounts: Option<Amounts>,
    /// Nobody else may have it beside this one.
    alone: bool,
    /// It draws on counters.
    draws: bool,
}

/// What is left of a pool's counters, by set and counter.
type Counters<'a> = HashMap<(&'a str, &'a str), Quantity>;

pub(super) struct Search<'a, 'w> {
    node: &'a Node,
    wanted: &'w [Wanted<'a>],
    taken: &'w Taken<'a>,
    effort: &'w Effort,
    pools: Vec<&'a Pool>,
    candidates: Vec<Candidate<'a>>,
    /// How often each candidate is taken for itself by this search.
    used: Vec<u32>,
    choices: Vec<Choice>,
    counters: HashMap<*const Pool, Counters<'a>>,
    /// What "all" is, by claim, request and alternative.
    all: HashMap<(usize, usize, usize), Vec<usize>>,
}

impl<'a, 'w> Search<'a, 'w> {
    pub(super) fn new(
        node: &'a Node,
        pools: Vec<&'a Pool>,
        wanted: &'w [Wanted<'a>],
        taken: &'w Taken<'a>,
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
            wanted,
            taken,
            effort,
            pools,
            candidates,
            choices: Vec::new(),
            counters: HashMap::new(),
            all: HashMap::new(),
        }
    }

    /// An allocation for each claim.
    pub(super) fn run(mut self) -> Result<Vec<Allocation>, Stop> {
        if self.next(0, 0)? {
            return Ok(self.allocations());
        }
        let unsound = self.pools.iter().any(|pool| pool.flaw == Some(Flaw::Invalid));
        Err(if unsound { Stop::Unsound } else { Stop::Unmet })
    }

    /// Meets this request and all that come after it.
    fn next(&mut self, mut claim: usize, mut request: usize) -> Result<bool, Stop> {
        while self.wanted.get(claim).is_some_and(|wanted| request >= wanted.requests.len()) {
            (claim, request) = (claim + 1, 0);
        }
        let Some(wanted) = self.wanted.get(claim) else { return Ok(true) };
        for alternative in 0..wanted.requests[request].alternatives.len() {
            if self.device((claim, request, alternative), 0, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the next device for a request, which has so many, from the candidates that come after those.
    fn device(
        &mut self,
        at: (usize, usize, usize),
        done: usize,
        from: usize,
    ) -> Result<bool, Stop> {
        let (claim, request, which) = at;
        let wanted: &'w Wanted<'a> = &self.wanted[claim];
        let alternative = &wanted.requests[request].alternatives[which];
        let all = match alternative.count {
            Count::All => Some(self.all_of(at, wanted, alternative)?),
            Count::Exactly(_) => None,
        };
        let need = match (&all, alternative.count) {
            (_, Count::Exactly(count)) => count,
            (Some(all), _) if !all.is_empty() => all.len(),
            _ => return Ok(false),
        };
        if done == need {
            return self.next(claim, request + 1);
        }
        if self.choices.len() >= MAX_DEPTH {
            let why = format!("a pod with more than {MAX_DEPTH} devices; ask for fewer");
            return Err(Stop::Wrong(why));
        }
        let has = self.choices.iter().filter(|choice| choice.claim == claim).count();
        if has + (need - done) > MAX_RESULTS {
            return Ok(false);
        }
        let tried = match all {
            Some(all) => vec![all[done]],
            None => (from..self.candidates.len()).collect(),
        };
        for candidate in tried {
            self.step()?;
            if !self.take(at, alternative, candidate)? {
                continue;
            }
            if self.device(at, done + 1, candidate + 1)? {
                return Ok(true);
            }
            self.give_back();
        }
        Ok(false)
    }

    fn step(&self) -> Result<(), Stop> {
        let left = self.effort.steps.get().checked_sub(1).ok_or(Stop::Exhausted)?;
        self.effort.steps.set(left);
        Ok(())
    }

    /// All devices that a request is for, be they in use or not. Those that cannot give it enough are not among them.
    fn all_of(
        &mut self,
        at: (usize, usize, usize),
        wanted: &Wanted<'a>,
        alternative: &Alternative<'a>,
    ) -> Result<Vec<usize>, Stop> {
        if let Some(known) = self.all.get(&at) {
            return Ok(known.clone());
        }
        for pool in &self.pools {
            let why = match pool.flaw {
                Some(Flaw::Incomplete) => "being updated",
                Some(Flaw::Invalid) => "invalid",
                None => continue,
            };
            return Err(Stop::Wrong(format!(
                "claim {}, request {}: asks for all devices, but resource pool {}/{} is currently {why}",
                wanted.label, alternative.name, pool.id.0, pool.id.1
            )));
        }
        let mut found = Vec::new();
        for at in 0..self.candidates.len() {
            self.step()?;
            let device = self.candidates[at];
            if self.matches(alternative, &device)?
                && self.amounts(alternative, &device, None).is_some()
            {
                found.push(at);
            }
        }
        self.all.insert(at, found.clone());
        Ok(found)
    }

    /// Whether the selectors of class and request take the device.
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
        if let Some(known) = self.effort.matches.borrow().get(&key) {
            return Ok(*known);
        }
        let mut matches = true;
        for (place, selector) in &alternative.selectors {
            let seen = candidate.device.seen.as_ref();
            let seen = seen.map_err(|why| Stop::Wrong(format!("{place}: {why}")))?;
            let (answer, cost) = selector.matches(seen);
            let left = self.effort.cost.get().checked_sub(cost).ok_or(Stop::Exhausted)?;
            self.effort.cost.set(left);
            if !answer.map_err(|why| Stop::Wrong(format!("{place}: {why}")))? {
                matches = false;
                break;
            }
        }
        self.effort.matches.borrow_mut().insert(key, matches);
        Ok(matches)
    }

    /// What the device would give of its capacities, beside what others have of it.
    fn amounts(
        &self,
        alternative: &Alternative<'a>,
        candidate: &Candidate<'a>,
        at: Option<usize>,
    ) -> Option<Amounts> {
        let shared = self.taken.shared.get(&candidate.id());
        let taken = |name: &str| {
            let others = shared.and_then(|shared| shared.get(name)).copied().unwrap_or_default();
            let own = self.choices.iter().filter(|choice| Some(choice.candidate) == at);
            let own = own.filter_map(|choice| choice.amounts.as_ref()?.get(name).copied());
            own.fold(others, |sum, amount| sum + amount)
        };
        let request = alternative.view.capacity.as_ref();
        capacity::given(&candidate.device.view.capacity, request, taken)
    }

    /// Takes a candidate, if that may be.
    fn take(
        &mut self,
        (claim, request, alternative): (usize, usize, usize),
        wanted: &Alternative<'a>,
        at: usize,
    ) -> Result<bool, Stop> {
        let candidate = self.candidates[at];
        let device = &candidate.device.view;
        let shareable = candidate.device.is_shareable();
        if !self.is_free(claim, wanted, at) || !self.matches(wanted, &candidate)? {
            return Ok(false);
        }
        let Some(amounts) = self.amounts(wanted, &candidate, Some(at)) else { return Ok(false) };
        let keeps_off = |taint: &DeviceTaintView| {
            matches!(&*taint.effect, "NoExecute" | "NoSchedule")
                && !wanted.view.tolerations.iter().any(|toleration| toleration.tolerates(taint))
        };
        if device.taints.iter().any(keeps_off) || !self.satisfies(claim, request, wanted, at) {
            return Ok(false);
        }
        // A device that is shared already draws on its counters already.
        let shared = self.taken.shared.contains_key(&candidate.id())
            || self.choices.iter().any(|choice| choice.candidate == at);
        let draws = !(device.consumes_counters.is_empty() || shareable && shared);
        if draws && !self.draw(&candidate) {
            return Ok(false);
        }
        let alone = !shareable && !wanted.admin;
        self.used[at] += u32::from(alone);
        let (candidate, amounts) = (at, shareable.then_some(amounts));
        self.choices.push(Choice { claim, request, alternative, candidate, amounts, alone, draws });
        Ok(true)
    }

    /// Whether nobody else has the device for itself. Of a claim's results none has the device of another, unless it
    /// can be shared; admin access does not mind other claims.
    fn is_free(&self, claim: usize, wanted: &Alternative<'a>, at: usize) -> bool {
        let candidate = self.candidates[at];
        let twice = || {
            let mut own = self.choices.iter().filter(|choice| choice.claim == claim);
            own.any(|choice| choice.candidate == at)
        };
        let in_use = self.used[at] > 0 || self.taken.exclusive.contains(&candidate.id());
        (wanted.admin || !in_use) && (candidate.device.is_shareable() || !twice())
    }

    /// Whether the claim's constraints still hold with the device. What they say of too few devices, more do not mend.
    fn satisfies(&self, claim: usize, request: usize, wanted: &Alternative<'a>, at: usize) -> bool {
        let of = &self.wanted[claim];
        let concerns = |constraint: &DeviceConstraintView, request: usize, full: &str| {
            let named = |name: &str| constraint.requests.iter().any(|known| **known == *name);
            constraint.requests.is_empty() || named(of.requests[request].name) || named(full)
        };
        of.claim.spec.devices.constraints.iter().all(|constraint| {
            if !concerns(constraint, request, &wanted.name) {
                return true;
            }
            let matching = constraint.match_attribute.as_deref();
            let name = matching.or(constraint.distinct_attribute.as_deref()).unwrap_or_default();
            let Some(own) = attribute(&self.candidates[at], name) else { return false };
            let mut others = self.choices.iter().filter(|choice| {
                let names = &of.requests;
                choice.claim == claim
                    && concerns(
                        constraint,
                        choice.request,
                        &names[choice.request].alternatives[choice.alternative].name,
                    )
            });
            others.all(|choice| {
                let same = attribute(&self.candidates[choice.candidate], name) == Some(own);
                same == matching.is_some()
            })
        })
    }

    /// Draws on the pool's counters, if there is enough left of each.
    fn draw(&mut self, candidate: &Candidate<'a>) -> bool {
        let (pool, taken) = (candidate.pool, self.taken);
        let left = self.counters.entry(pool).or_insert_with(|| left(pool, taken));
        let drawn = || drawn(candidate.device);
        // A device may name a set twice.
        let mut sums: Counters<'a> = HashMap::new();
        drawn().for_each(|(key, amount)| *sums.entry(key).or_default() += amount);
        let enough = sums.iter().all(|(key, amount)| left.get(key).is_some_and(|l| amount <= l));
        if enough {
            sums.iter().for_each(|(key, amount)| *left.entry(*key).or_default() -= *amount);
        }
        enough
    }

    fn give_back(&mut self) {
        let Some(choice) = self.choices.pop() else { return };
        let candidate = self.candidates[choice.candidate];
        self.used[choice.candidate] -= u32::from(choice.alone);
        if choice.draws
            && let Some(left) = self.counters.get_mut(&std::ptr::from_ref(candidate.pool))
        {
            drawn(candidate.device)
                .for_each(|(key, amount)| *left.entry(key).or_default() += amount);
        }
    }

    fn allocations(&self) -> Vec<Allocation> {
        let of = |(claim, wanted): (usize, &Wanted<'a>)| {
            let chosen = self.choices.iter().filter(|choice| choice.claim == claim);
            let chosen: Vec<_> = chosen
                .map(|choice| {
                    let candidate = &self.candidates[choice.candidate];
                    allocation::Chosen {
                        request: choice.request,
                        alternative: &wanted.requests[choice.request].alternatives
                            [choice.alternative],
                        pool: candidate.pool,
                        slice: candidate.slice,
                        device: candidate.device,
                        amounts: choice.amounts.as_ref(),
                    }
                })
                .collect();
            allocation::build(wanted, &chosen, self.node)
        };
        self.wanted.iter().enumerate().map(of).collect()
    }
}

/// What a device draws on, and how much.
fn drawn(device: &Device) -> impl Iterator<Item = ((&str, &str), Quantity)> {
    device.view.consumes_counters.iter().flat_map(|from| {
        from.counters.iter().map(|(name, c)| ((&*from.counter_set, &**name), c.value))
    })
}

/// What the devices that are in use leave of a pool's counters, on whatever node they are.
fn left<'a>(pool: &'a Pool, taken: &Taken<'a>) -> Counters<'a> {
    let mut left: Counters<'a> = HashMap::new();
    for (set, counters) in pool.counters() {
        left.extend(counters.iter().map(|(name, amount)| ((&**set, &**name), *amount)));
    }
    for device in pool.slices().flat_map(|slice| &slice.devices) {
        if taken.has_any(&(&*pool.id.0, &*pool.id.1, &*device.view.name)) {
            drawn(device).for_each(|(key, amount)| *left.entry(key).or_default() -= amount);
        }
    }
    left
}

/// An attribute by its full name; those of the driver's own domain may be without it.
fn attribute<'a>(candidate: &Candidate<'a>, name: &str) -> Option<&'a DeviceAttributeView> {
    let attributes = &candidate.device.view.attributes;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        (*domain == *candidate.pool.id.0).then(|| attributes.get(id)).flatten()
    })
}
