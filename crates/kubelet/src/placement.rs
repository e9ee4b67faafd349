//! Where on the machine containers are: which CPUs, memory, devices and NUMA nodes they have (the pure [`Cpus`],
//! [`NumaMemory`] and [`topology`](pod_core::topology), and [`Devices`]).
//!
//! - What a Pod is given is on the disk before any of its containers starts, and is given back when all of it has ended,
//!   so that a CPU has one holder whenever the kubelet dies.
//! - Nothing is given without the nodes that all who give agree on. Pods that want devices are placed one after the other
//!   where NUMA nodes count, so that nobody takes what another was just promised.

mod admit;
mod counts;
mod given;
mod memory;
mod reconcile;
#[cfg(test)]
mod tests;
mod topology;

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    cpus::{CpuError, CpuSet, Cpus, Reserved},
    numa_memory::{Block, NumaMemory},
    topology::{Nodes, Policy},
};
use telemetry::metrics::Metrics;
use tokio::sync::watch;

use crate::{
    checkpoint::Checkpoint,
    config::{PlacementSettings, Settings},
    devices::Devices,
};
use counts::Counts;
use given::{Given, Kept as _, restore};

pub(crate) use reconcile::run;
pub(crate) use topology::Topology;
pub use topology::TopologyError;

/// The file in which the CPUs given away stand, by upstream's name.
const CPUS: &str = "cpu_manager_state";
/// Likewise for memory.
const MEMORY: &str = "memory_manager_state";

/// Why a kubelet cannot place containers as it is configured to.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("reserved-cpus: {wanted} is not a subset of online-cpus: {online}")]
    Offline { wanted: CpuSet, online: CpuSet },
    #[error(
        "[cpumanager] unable to determine reserved CPU resources for static policy; reserve some with reservedSystemCPUs, systemReserved or kubeReserved"
    )]
    NothingReserved,
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal {0})"
    )]
    TooMuchReserved(usize),
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NoSuchNode(i64),
    #[error(
        "the total amount {on_nodes:?} of type {resource:?} is not equal to the value {kept:?} determined by Node Allocatable feature; give reservedMemory as much as kubeReserved, systemReserved and evictionHard come to"
    )]
    ReservedOtherwise { resource: String, on_nodes: String, kept: String },
    #[error("[memorymanager] you should specify the system reserved memory")]
    NoMemoryReserved,
    #[error(
        "start {manager} manager error: could not restore state from checkpoint: {source}, please drain this node and delete the {name} manager checkpoint file \"{}\" before restarting Kubelet", path.display()
    )]
    State {
        manager: &'static str,
        name: &'static str,
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Who has what of this machine.
pub(crate) struct Placement {
    settings: PlacementSettings,
    nodes: Nodes,
    pub(crate) devices: Arc<Devices>,
    state: Mutex<State>,
    /// Whoever is placed with devices by NUMA nodes.
    turn: tokio::sync::Mutex<()>,
    cpus: Checkpoint,
    memory: Checkpoint,
    /// Tells that something has been given back.
    freed: watch::Sender<()>,
    /// Tells that other CPUs are shared than before.
    moved: watch::Sender<()>,
    counts: Counts,
}

struct State {
    given: Given,
    /// Pods that have something and are about to end.
    ending: BTreeSet<String>,
}

impl Placement {
    /// Goes on with what a kubelet before this one has left, if that fits the machine and the configuration.
    pub(crate) fn new(
        settings: &Settings,
        topology: Topology,
        devices: Arc<Devices>,
        metrics: &Metrics,
    ) -> Result<Self, PlacementError> {
        let placement = settings.placement.clone();
        let (online, nodes) = (topology.online(), topology.places(placement.closest));
        if let Some(wanted) = &placement.reserved_cpus
            && !wanted.without(&online).is_empty()
        {
            return Err(PlacementError::Offline { wanted: wanted.clone(), online });
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
            state: Mutex::new(State { given: Given { cpus, memory }, ending: BTreeSet::new() }),
            turn: tokio::sync::Mutex::default(),
            cpus: cpus_file,
            memory: memory_file,
            freed: watch::channel(()).0,
            moved: watch::channel(()).0,
            counts,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The CPUs that a container is to run on; `None` if on all.
    pub(crate) fn cpus(&self, uid: &str, container: &str) -> Option<CpuSet> {
        let state = self.lock();
        let cpus = state.given.cpus.as_ref()?.of(uid, container);
        (!cpus.is_empty()).then(|| cpus.clone())
    }

    /// The CPUs that a container has for itself.
    pub(crate) fn exclusive(&self, uid: &str, container: &str) -> CpuSet {
        let state = self.lock();
        let given = state.given.cpus.as_ref().and_then(|cpus| cpus.exclusive(uid, container));
        given.cloned().unwrap_or_default()
    }

    /// Whether any of a Pod's containers has CPUs for itself.
    pub(crate) fn has_exclusive(&self, uid: &str) -> bool {
        let state = self.lock();
        state.given.cpus.iter().flat_map(Cpus::holders).any(|holder| holder == uid)
    }

    /// The CPUs that may be given away; none if nobody has any for itself.
    pub(crate) fn allocatable(&self) -> CpuSet {
        self.lock().given.cpus.as_ref().map(Cpus::allocatable).unwrap_or_default()
    }

    /// The memory that a container has for itself.
    pub(crate) fn memory(&self, uid: &str, container: &str) -> Vec<Block> {
        let state = self.lock();
        let given = state.given.memory.as_ref().map(|memory| memory.given(uid, container).to_vec());
        given.unwrap_or_default()
    }

    /// The NUMA nodes whose memory a container is to use, as the kernel writes them; empty if any.
    pub(crate) fn memory_nodes(&self, uid: &str, container: &str) -> String {
        let state = self.lock();
        let nodes = state.given.memory.iter().flat_map(|memory| memory.nodes(uid, container));
        nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
    }

    /// The memory that may be given away; none if nobody has any for itself.
    pub(crate) fn allocatable_memory(&self) -> Vec<Block> {
        self.lock().given.memory.as_ref().map(NumaMemory::allocatable).unwrap_or_default()
    }

    /// Why a Pod that runs is not given other amounts of what it has for itself, in upstream's words.
    pub(crate) fn forbids_resize(&self, pod: &Pod, given: &Pod) -> Option<String> {
        if pod_core::qos_class(pod) != pod_core::QosClass::Guaranteed {
            return None;
        }
        let state = self.lock();
        let managers = [
            ("cpu", state.given.cpus.is_some(), "CPU Manager policy \"static\""),
            ("memory", state.given.memory.is_some(), "Memory Manager policy \"Static\""),
        ];
        let differs = |name: &str| pod_core::resize::differs(pod, given, name);
        let forbids = managers.iter().find(|(name, acts, _)| *acts && differs(name));
        forbids.map(|(_, _, policy)| {
            format!("Resize is infeasible for Guaranteed Pods alongside {policy}")
        })
    }

    /// The Pods that have something.
    pub(crate) fn holders(&self) -> BTreeSet<String> {
        let mut holders: BTreeSet<String> = self.devices.holders().into_iter().collect();
        holders.extend(self.lock().given.holders().map(str::to_owned));
        holders
    }

    /// A Pod is about to end: who wants what it has waits for that, as the scheduler may have heard of it first.
    pub(crate) fn ending(&self, uid: &str) {
        if self.holders().contains(uid) {
            self.lock().ending.insert(uid.to_owned());
        }
    }

    /// All of a Pod has ended: what it had may be given to others.
    pub(crate) async fn release(&self, uid: &str) {
        let had = {
            let mut state = self.lock();
            state.ending.remove(uid);
            state.given.release(uid)
        };
        if had && let Err(error) = self.save().await {
            tracing::warn!(uid, %error, "give back a Pod's CPUs and memory");
        }
        self.devices.release(uid).await;
        self.freed.send_replace(());
    }

    /// Writes down who has what; the disk has it when this returns.
    async fn save(&self) -> io::Result<()> {
        self.counts.measure(self.lock().given.cpus.as_ref());
        self.moved.send_replace(());
        let acts = {
            let given = &self.lock().given;
            (given.cpus.is_some(), given.memory.is_some())
        };
        if acts.0 {
            let content = || self.lock().given.cpus.as_ref().map_or_else(Cpus::none, Cpus::bytes);
            self.cpus.write(content).await?;
        }
        if acts.1 {
            let content = || {
                let given = &self.lock().given;
                given.memory.as_ref().map_or_else(NumaMemory::none, NumaMemory::bytes)
            };
            self.memory.write(content).await?;
        }
        Ok(())
    }
}

/// The CPUs to give away, if any are.
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
    let reserved = these.map_or(Reserved::Count(count), Reserved::These);
    let none = |_: CpuError| PlacementError::TooMuchReserved(count);
    Cpus::new(topology.cpus, options, reserved).map(Some).map_err(none)
}
