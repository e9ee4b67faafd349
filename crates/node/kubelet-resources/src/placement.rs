//! The CPU, memory and topology managers. They allocate CPUs and memory of NUMA nodes (the pure [`Cpus`],
//! [`NumaMemory`] and [`topology`](pod_core::topology)), and have [`Devices`] allocate devices near these nodes. Read
//! [`Placement`] first.
//!
//! - The checkpoints list an allocation before any container of the Pod starts, and release it only after all of the
//!   Pod has ended. So a CPU has one holder even if the kubelet is killed.
//! - An allocation follows the NUMA nodes that all managers agree on. With a topology policy, Pods that request devices
//!   are placed one at a time, so that no other Pod takes the devices that a hint promised.

mod admit;
mod allocations;
mod counts;
pub(crate) mod error;
mod memory;
pub(crate) mod reconcile;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod topology;

use std::{collections::BTreeSet, io, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_config::{PlacementSettings, Settings};
use parking_lot::{Mutex, MutexGuard};
use pod_core::{
    cpus::{CpuError, CpuSet, Cpus, Reserved},
    numa_memory::{Block, NumaMemory},
    topology::{Nodes, Policy},
};
use telemetry::metrics::Metrics;
use tokio::sync::watch;

use crate::{checkpoint::Checkpoint, devices::Devices};
use allocations::{Allocations, Checkpointed as _, restore};
use counts::Counts;
use error::PlacementError;
use topology::Topology;

/// The checkpoint file of the CPU manager, named as upstream.
const CPUS: &str = "cpu_manager_state";
/// The checkpoint file of the memory manager, named as upstream.
const MEMORY: &str = "memory_manager_state";

/// The allocations of CPUs, memory and devices on this machine.
pub struct Placement {
    settings: PlacementSettings,
    nodes: Nodes,
    pub(crate) devices: Arc<Devices>,
    state: Mutex<State>,
    /// Serializes the placement of Pods with devices under a topology policy.
    turn: tokio::sync::Mutex<()>,
    cpus: Checkpoint,
    memory: Checkpoint,
    /// Changes when allocations are released.
    freed: watch::Sender<()>,
    /// Changes when the shared CPUs change.
    moved: watch::Sender<()>,
    counts: Counts,
}

struct State {
    allocations: Allocations,
    /// Pods with allocations that are about to end.
    ending: BTreeSet<String>,
}

impl Placement {
    /// Restores the allocations of an earlier kubelet, if they fit the machine and the configuration.
    pub fn new(
        settings: &Settings,
        topology: Topology,
        devices: Arc<Devices>,
        metrics: &Metrics,
    ) -> Result<Self, PlacementError> {
        let placement = settings.placement.clone();
        let (online, nodes) = (topology.online(), topology.places(placement.closest));
        if let Some(reserved) = &placement.reserved_cpus
            && !reserved.without(&online).is_empty()
        {
            return Err(PlacementError::Offline { reserved: reserved.clone(), online });
        }
        if placement.topology != Policy::None && nodes.all.len() > placement.most_nodes {
            return Err(PlacementError::TooManyNodes(placement.most_nodes));
        }
        let memory_file = Checkpoint::new(settings.root.join(MEMORY));
        let memory = restore(&memory_file, memory::memory(settings, &topology)?)?;
        let cpus_file = Checkpoint::new(settings.root.join(CPUS));
        let cpus = restore(&cpus_file, cpus(settings, topology)?)?;
        let counts = Counts::new(metrics);
        counts.measure(cpus.as_ref());
        Ok(Self {
            settings: placement,
            nodes,
            devices,
            state: Mutex::new(State {
                allocations: Allocations { cpus, memory },
                ending: BTreeSet::new(),
            }),
            turn: tokio::sync::Mutex::default(),
            cpus: cpus_file,
            memory: memory_file,
            freed: watch::channel(()).0,
            moved: watch::channel(()).0,
            counts,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the CPUs on which a container must run, or `None` for all CPUs.
    pub fn cpus(&self, uid: &str, container: &str) -> Option<CpuSet> {
        let state = self.lock();
        let cpus = state.allocations.cpus.as_ref()?.of(uid, container);
        (!cpus.is_empty()).then(|| cpus.clone())
    }

    /// Returns a container's exclusive CPUs.
    pub fn exclusive(&self, uid: &str, container: &str) -> CpuSet {
        let state = self.lock();
        let allocated =
            state.allocations.cpus.as_ref().and_then(|cpus| cpus.exclusive(uid, container));
        allocated.cloned().unwrap_or_default()
    }

    /// Reports whether any container of a Pod has exclusive CPUs.
    pub fn has_exclusive(&self, uid: &str) -> bool {
        let state = self.lock();
        state.allocations.cpus.iter().flat_map(Cpus::holders).any(|holder| holder == uid)
    }

    /// Returns the CPUs that can be allocated exclusively. The set is empty under the CPU manager's policy `none`.
    pub(crate) fn allocatable(&self) -> CpuSet {
        self.lock().allocations.cpus.as_ref().map(Cpus::allocatable).unwrap_or_default()
    }

    /// Returns a container's exclusive memory.
    pub fn memory(&self, uid: &str, container: &str) -> Vec<Block> {
        let state = self.lock();
        let allocated =
            state.allocations.memory.as_ref().map(|memory| memory.blocks(uid, container).to_vec());
        allocated.unwrap_or_default()
    }

    /// Returns a container's NUMA memory nodes in the kernel's syntax (`cpuset.mems`). Empty means any node.
    pub fn memory_nodes(&self, uid: &str, container: &str) -> String {
        let state = self.lock();
        let nodes = state.allocations.memory.iter().flat_map(|memory| memory.nodes(uid, container));
        nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Returns the memory that can be allocated exclusively. It is empty under the memory manager's policy `None`.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        self.lock().allocations.memory.as_ref().map(NumaMemory::allocatable).unwrap_or_default()
    }

    /// Returns upstream's message if a running Pod's exclusive CPUs or memory cannot be resized.
    pub fn forbids_resize(&self, pod: &Pod, allocated: &Pod) -> Option<String> {
        if pod_core::qos_class(pod) != pod_core::QosClass::Guaranteed {
            return None;
        }
        let state = self.lock();
        let managers = [
            ("cpu", state.allocations.cpus.is_some(), "CPU Manager policy \"static\""),
            ("memory", state.allocations.memory.is_some(), "Memory Manager policy \"Static\""),
        ];
        let differs = |name: &str| pod_core::resize::differs(pod, allocated, name);
        let forbids = managers.iter().find(|(name, acts, _)| *acts && differs(name));
        forbids.map(|(_, _, policy)| {
            format!("Resize is infeasible for Guaranteed Pods alongside {policy}")
        })
    }

    /// Returns the UIDs of the Pods with allocations.
    pub fn holders(&self) -> BTreeSet<String> {
        let mut holders: BTreeSet<String> = self.devices.holders().into_iter().collect();
        holders.extend(self.lock().allocations.holders().map(str::to_owned));
        holders
    }

    /// Marks a Pod as about to end. A Pod that lacks its resources waits for it, because the scheduler may count them
    /// as free.
    pub fn mark_ending(&self, uid: &str) {
        if self.holders().contains(uid) {
            self.lock().ending.insert(uid.to_owned());
        }
    }

    /// Releases the allocations of a Pod. Call it only when all of the Pod has ended.
    pub async fn release(&self, uid: &str) {
        let had = {
            let mut state = self.lock();
            state.ending.remove(uid);
            state.allocations.release(uid)
        };
        if had && let Err(error) = self.save().await {
            tracing::warn!(uid, %error, "write the checkpoints after a Pod has ended");
        }
        self.devices.release(uid).await;
        self.freed.send_replace(());
    }

    /// Writes the checkpoints. The content is on the disk when this returns.
    async fn save(&self) -> io::Result<()> {
        self.counts.measure(self.lock().allocations.cpus.as_ref());
        self.moved.send_replace(());
        let acts = {
            let allocated = &self.lock().allocations;
            (allocated.cpus.is_some(), allocated.memory.is_some())
        };
        if acts.0 {
            let content =
                || self.lock().allocations.cpus.as_ref().map_or_else(Cpus::none, Cpus::bytes);
            self.cpus.write(content).await?;
        }
        if acts.1 {
            let content = || {
                let allocated = &self.lock().allocations;
                allocated.memory.as_ref().map_or_else(NumaMemory::none, NumaMemory::bytes)
            };
            self.memory.write(content).await?;
        }
        Ok(())
    }
}

/// Creates the CPU manager's state, or returns `None` under the policy `none`.
fn cpus(settings: &Settings, topology: Topology) -> Result<Option<Cpus>, PlacementError> {
    let Some(options) = settings.placement.cpus else { return Ok(None) };
    let reserved = settings.reserved.get("cpu").into_iter().flatten();
    let milli = |amount: &String| api_meta::Quantity::parse(amount).map_or(0, |q| q.milli_value());
    let milli: i64 = reserved.map(milli).fold(0, i64::saturating_add);
    let count = usize::try_from(milli).unwrap_or(0).div_ceil(1000);
    if count == 0 {
        return Err(PlacementError::NothingReserved);
    }
    let these = settings.placement.reserved_cpus.clone();
    let reserved = these.map_or(Reserved::Count(count), Reserved::Set);
    let none = |_: CpuError| PlacementError::TooMuchReserved(count);
    Cpus::new(topology.cpus, options, reserved).map(Some).map_err(none)
}
