//! Exclusive CPUs (the CPU manager's policy `static`). A container of a Guaranteed Pod that requests whole CPUs gets
//! exclusive ones; all other containers share the rest. Read [`Cpus`] first. This module does no I/O.

pub mod checkpoint;
mod machine;
mod set;
mod take;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

pub use machine::{CpuError, CpuLocation, Machine, Options};
pub use set::{CpuSet, SetError};

use crate::{
    qos::{QosClass, qos_class},
    resources::Amounts,
    spec::{Role, members},
    topology::{Hints, Mask, at_once, hints},
};

/// The allocation of CPUs to containers.
#[derive(Clone, Debug)]
pub struct Cpus {
    machine: Machine,
    options: Options,
    reserved: CpuSet,
    shared: CpuSet,
    pods: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl Cpus {
    /// Creates a state without allocations. A count reserves the CPUs that would be allocated first.
    pub fn new(machine: Machine, options: Options, reserved: Reserved) -> Result<Self, CpuError> {
        let all: CpuSet = machine.keys().copied().collect();
        let reserved = match reserved {
            Reserved::Set(set) => set,
            Reserved::Count(count) => take::take(&machine, &all, count, options)?,
        };
        let shared = if options.strict { all.without(&reserved) } else { all };
        Ok(Self { machine, options, reserved, shared, pods: BTreeMap::new() })
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
    pub fn allocated_by_node(&self) -> BTreeMap<i64, usize> {
        let mut nodes: BTreeMap<i64, usize> =
            self.machine.values().map(|place| (place.node, 0)).collect();
        let allocated = self.pods.values().flat_map(BTreeMap::values);
        let all = allocated.fold(CpuSet::default(), |all, cpus| all.and(cpus));
        for place in all.iter().filter_map(|cpu| self.machine.get(&cpu)) {
            *nodes.entry(place.node).or_default() += 1;
        }
        nodes
    }

    /// Returns a container's exclusive CPUs.
    pub fn exclusive(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.pods.get(uid)?.get(container)
    }

    /// Returns the CPUs on which a container runs: its exclusive ones or the shared ones.
    pub fn of(&self, uid: &str, container: &str) -> &CpuSet {
        self.exclusive(uid, container).unwrap_or(&self.shared)
    }

    /// Returns the UIDs of the Pods with exclusive CPUs.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// Returns the number of exclusive CPUs that a container requests.
    pub fn requested(pod: &Pod, container: &Container) -> usize {
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

    /// Allocates exclusive CPUs to a container, on the preferred NUMA nodes if possible. Returns `false` if it has or
    /// needs none.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: Option<Mask>,
    ) -> Result<bool, CpuError> {
        let requested = Self::requested(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if requested == 0 || self.exclusive(uid, &container.name).is_some() {
            return Ok(false);
        }
        self.align(requested)?;
        let free = self.free().and(&self.reusable(pod, &container.name));
        let mut chosen = CpuSet::default();
        if let Some(near) = near {
            let is_near = |cpu: &u32| self.machine.get(cpu).is_some_and(|at| near.has(at.node));
            let aligned: CpuSet = free.iter().filter(is_near).collect();
            chosen = self.take(&aligned, requested.min(aligned.len()))?;
        }
        let missing = requested - chosen.len();
        let rest = self.take(&free.without(&chosen), missing);
        let rest = rest.map_err(|_| CpuError::TooFew { requested, available: free.len() })?;
        chosen = chosen.and(&rest);
        self.shared = self.shared.without(&chosen);
        let of_pod = self.pods.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), chosen);
        Ok(true)
    }

    fn take(&self, free: &CpuSet, requested: usize) -> Result<CpuSet, CpuError> {
        take::take(&self.machine, free, requested, self.options)
    }

    fn align(&self, requested: usize) -> Result<(), CpuError> {
        if !self.options.full_cores {
            return Ok(());
        }
        let cores: BTreeSet<u32> = self.machine.values().map(|place| place.core).collect();
        let per_core = self.machine.len() / cores.len().max(1);
        if !requested.is_multiple_of(per_core.max(1)) {
            return Err(CpuError::NoWholeCores { requested, per_core });
        }
        let core = |cpu: u32| self.machine.get(&cpu).map(|place| place.core);
        let reserved: BTreeSet<Option<u32>> = self.reserved.iter().map(core).collect();
        let available = self.shared.iter().filter(|cpu| !reserved.contains(&core(*cpu))).count();
        if requested > available {
            return Err(CpuError::TooFewCores { requested, available, per_core });
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
            let Some(allocated) = self.exclusive(uid, name) else { continue };
            reusable = match member.role {
                Role::Init => reusable.and(allocated),
                Role::Sidecar | Role::App | Role::Ephemeral => reusable.without(allocated),
            };
        }
        reusable
    }

    /// Releases a Pod's CPUs. Returns `true` if it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(allocated) = self.pods.remove(uid) else { return false };
        self.shared = allocated.values().fold(self.shared.clone(), |shared, cpus| shared.and(cpus));
        true
    }

    /// Returns the topology hints for a container's CPUs.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let requested = Self::requested(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if requested == 0 {
            return None;
        }
        if let Some(allocated) = self.exclusive(uid, &container.name) {
            let same = allocated.len() == requested;
            let none = CpuSet::default();
            return Some(if same { self.near(requested, allocated, &none) } else { Vec::new() });
        }
        Some(self.near(requested, &self.free(), &self.reusable(pod, &container.name)))
    }

    /// Returns the topology hints for all CPUs of a Pod together.
    pub fn pod_hints(&self, pod: &Pod) -> Hints {
        let requested = at_once(pod, |container| Self::requested(pod, container));
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if requested == 0 {
            return None;
        }
        let allocated = self.pods.get(uid).into_iter().flat_map(BTreeMap::values);
        let allocated = allocated.fold(CpuSet::default(), |all, cpus| all.and(cpus));
        let free = if allocated.len() == requested {
            allocated.clone()
        } else {
            self.free().and(&allocated)
        };
        Some(self.near(requested, &free.without(&allocated), &allocated))
    }

    fn near(&self, requested: usize, free: &CpuSet, reused: &CpuSet) -> Vec<crate::topology::Hint> {
        let nodes: BTreeSet<i64> = self.machine.values().map(|place| place.node).collect();
        let nodes: Vec<i64> = nodes.into_iter().collect();
        let on = |mask: Mask, cpu: u32| self.machine.get(&cpu).is_some_and(|p| mask.has(p.node));
        let total = |mask: Mask| self.machine.values().filter(|place| mask.has(place.node)).count();
        let free = |mask: Mask| {
            let all_reused = reused.iter().all(|cpu| on(mask, cpu));
            all_reused.then(|| reused.len() + free.iter().filter(|cpu| on(mask, *cpu)).count())
        };
        hints(&nodes, requested, total, free)
    }
}

/// The CPUs reserved for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// These CPUs.
    Set(CpuSet),
    /// A number of CPUs.
    Count(usize),
}
