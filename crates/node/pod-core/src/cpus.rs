//! Exclusive CPUs (the CPU manager's policy `static`). A container of a Guaranteed Pod that requests whole CPUs gets
//! exclusive ones; all other containers share the rest. Read [`Cpus`] first. This module does no I/O.

pub mod checkpoint;
mod set;
mod take;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

pub use set::{CpuSet, SetError};

use crate::{
    qos::{QosClass, qos_class},
    resources::Amounts,
    spec::{Role, members},
    topology::{Hints, Mask, at_once, hints},
};

/// The position of a CPU in the machine. CPUs with the same core are its hardware threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLocation {
    /// The lowest CPU of the core.
    pub core: u32,
    /// The number of the socket.
    pub socket: i64,
    /// The number of the NUMA node.
    pub node: i64,
    /// The lowest of the CPUs that share the last-level cache.
    pub cache: u32,
}

/// The CPUs of a machine by number.
pub type Machine = BTreeMap<u32, CpuLocation>;

/// The options of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Allocate whole cores only (`full-pcpus-only`).
    pub full_cores: bool,
    /// Shared containers do not run on the reserved CPUs (`strict-cpu-reservation`).
    pub strict: bool,
    /// Allocate evenly if one NUMA node is not enough (`distribute-cpus-across-numa`).
    pub distribute: bool,
    /// Prefer CPUs that share a cache (`prefer-align-cpus-by-uncorecache`).
    pub by_cache: bool,
}

/// The error of an allocation of CPUs. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    #[error(
        "not enough cpus available to satisfy request: requested={wanted}, available={available}"
    )]
    TooFew { wanted: usize, available: usize },
    #[error("SMT Alignment Error: requested {wanted} cpus not multiple cpus per core = {per_core}")]
    NoWholeCores { wanted: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {wanted}, CPUs per core = {per_core}"
    )]
    TooFewCores { wanted: usize, available: usize, per_core: usize },
}

impl CpuError {
    /// Returns the reason in the status of a Pod that is refused because of the error.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooFew { .. } => "UnexpectedAdmissionError",
            Self::NoWholeCores { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
        }
    }
}

/// The allocation of CPUs to containers.
#[derive(Clone, Debug)]
pub struct Cpus {
    machine: Machine,
    options: Options,
    reserved: CpuSet,
    shared: CpuSet,
    given: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl Cpus {
    /// Creates a state without allocations. A count reserves the CPUs that would be allocated first.
    pub fn new(machine: Machine, options: Options, reserved: Reserved) -> Result<Self, CpuError> {
        let all: CpuSet = machine.keys().copied().collect();
        let reserved = match reserved {
            Reserved::These(these) => these,
            Reserved::Count(count) => take::take(&machine, &all, count, options)?,
        };
        let shared = if options.strict { all.without(&reserved) } else { all };
        Ok(Self { machine, options, reserved, shared, given: BTreeMap::new() })
    }

    /// Returns the options of the policy.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the CPUs that can be allocated exclusively.
    pub fn allocatable(&self) -> CpuSet {
        self.machine.keys().copied().collect::<CpuSet>().without(&self.reserved)
    }

    /// Returns the CPUs of containers without exclusive CPUs.
    pub fn shared(&self) -> &CpuSet {
        &self.shared
    }

    /// Returns the number of allocated CPUs on each NUMA node.
    pub fn given_by_node(&self) -> BTreeMap<i64, usize> {
        let mut nodes: BTreeMap<i64, usize> =
            self.machine.values().map(|place| (place.node, 0)).collect();
        let given = self.given.values().flat_map(BTreeMap::values);
        let all = given.fold(CpuSet::default(), |all, cpus| all.and(cpus));
        for place in all.iter().filter_map(|cpu| self.machine.get(&cpu)) {
            *nodes.entry(place.node).or_default() += 1;
        }
        nodes
    }

    /// Returns a container's exclusive CPUs.
    pub fn exclusive(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.given.get(uid)?.get(container)
    }

    /// Returns the CPUs on which a container runs: its exclusive ones or the shared ones.
    pub fn of(&self, uid: &str, container: &str) -> &CpuSet {
        self.exclusive(uid, container).unwrap_or(&self.shared)
    }

    /// Returns the UIDs of the Pods with exclusive CPUs.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }

    /// Returns the number of exclusive CPUs that a container requests.
    pub fn asked(pod: &Pod, container: &Container) -> usize {
        let pod_level = pod.spec.as_ref().is_some_and(|spec| spec.resources.is_some());
        if qos_class(pod) != QosClass::Guaranteed || pod_level {
            return 0;
        }
        let milli = container.resources.as_ref().map(Amounts::of).unwrap_or_default().cpu_request;
        usize::try_from(milli)
            .ok()
            .filter(|milli| milli % 1000 == 0)
            .map_or(0, |milli| milli / 1000)
    }

    /// Allocates exclusive CPUs to a container, on the wanted NUMA nodes if possible. Returns `false` if it has or
    /// needs none.
    pub fn allot(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: Option<Mask>,
    ) -> Result<bool, CpuError> {
        let wanted = Self::asked(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if wanted == 0 || self.exclusive(uid, &container.name).is_some() {
            return Ok(false);
        }
        self.align(wanted)?;
        let free = self.free().and(&self.reusable(pod, &container.name));
        let mut taken = CpuSet::default();
        if let Some(near) = near {
            let is_near = |cpu: &u32| self.machine.get(cpu).is_some_and(|at| near.has(at.node));
            let aligned: CpuSet = free.iter().filter(is_near).collect();
            taken = self.take(&aligned, wanted.min(aligned.len()))?;
        }
        let missing = wanted - taken.len();
        let rest = self.take(&free.without(&taken), missing);
        let rest = rest.map_err(|_| CpuError::TooFew { wanted, available: free.len() })?;
        taken = taken.and(&rest);
        self.shared = self.shared.without(&taken);
        let of_pod = self.given.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), taken);
        Ok(true)
    }

    fn take(&self, free: &CpuSet, wanted: usize) -> Result<CpuSet, CpuError> {
        take::take(&self.machine, free, wanted, self.options)
    }

    fn align(&self, wanted: usize) -> Result<(), CpuError> {
        if !self.options.full_cores {
            return Ok(());
        }
        let cores: BTreeSet<u32> = self.machine.values().map(|place| place.core).collect();
        let per_core = self.machine.len() / cores.len().max(1);
        if !wanted.is_multiple_of(per_core.max(1)) {
            return Err(CpuError::NoWholeCores { wanted, per_core });
        }
        let core = |cpu: u32| self.machine.get(&cpu).map(|place| place.core);
        let reserved: BTreeSet<Option<u32>> = self.reserved.iter().map(core).collect();
        let available = self.shared.iter().filter(|cpu| !reserved.contains(&core(*cpu))).count();
        if wanted > available {
            return Err(CpuError::TooFewCores { wanted, available, per_core });
        }
        Ok(())
    }

    fn free(&self) -> CpuSet {
        self.shared.without(&self.reserved)
    }

    /// Returns the CPUs of init containers that ended before this container starts.
    fn reusable(&self, pod: &Pod, container: &str) -> CpuSet {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut reusable = CpuSet::default();
        for member in members(pod) {
            let name = member.container.name.as_str();
            if name == container {
                break;
            }
            let Some(given) = self.exclusive(uid, name) else { continue };
            reusable = match member.role {
                Role::Init => reusable.and(given),
                Role::Sidecar | Role::App | Role::Ephemeral => reusable.without(given),
            };
        }
        reusable
    }

    /// Releases a Pod's CPUs. Returns `true` if it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(given) = self.given.remove(uid) else { return false };
        self.shared = given.values().fold(self.shared.clone(), |shared, cpus| shared.and(cpus));
        true
    }

    /// Returns the topology hints for a container's CPUs.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let wanted = Self::asked(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if wanted == 0 {
            return None;
        }
        if let Some(given) = self.exclusive(uid, &container.name) {
            let same = given.len() == wanted;
            let none = CpuSet::default();
            return Some(if same { self.near(wanted, given, &none) } else { Vec::new() });
        }
        Some(self.near(wanted, &self.free(), &self.reusable(pod, &container.name)))
    }

    /// Returns the topology hints for all CPUs of a Pod together.
    pub fn pod_hints(&self, pod: &Pod) -> Hints {
        let wanted = at_once(pod, |container| Self::asked(pod, container));
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if wanted == 0 {
            return None;
        }
        let given = self.given.get(uid).into_iter().flat_map(BTreeMap::values);
        let given = given.fold(CpuSet::default(), |all, cpus| all.and(cpus));
        let free = if given.len() == wanted { given.clone() } else { self.free().and(&given) };
        Some(self.near(wanted, &free.without(&given), &given))
    }

    fn near(&self, wanted: usize, free: &CpuSet, kept: &CpuSet) -> Vec<crate::topology::Hint> {
        let nodes: BTreeSet<i64> = self.machine.values().map(|place| place.node).collect();
        let nodes: Vec<i64> = nodes.into_iter().collect();
        let on = |mask: Mask, cpu: u32| self.machine.get(&cpu).is_some_and(|p| mask.has(p.node));
        let whole = |mask: Mask| self.machine.values().filter(|place| mask.has(place.node)).count();
        let free = |mask: Mask| {
            let all_kept = kept.iter().all(|cpu| on(mask, cpu));
            all_kept.then(|| kept.len() + free.iter().filter(|cpu| on(mask, *cpu)).count())
        };
        hints(&nodes, wanted, whole, free)
    }
}

/// The CPUs reserved for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// These CPUs.
    These(CpuSet),
    /// A number of CPUs.
    Count(usize),
}
