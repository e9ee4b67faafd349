//! The errors of placement.

use std::path::PathBuf;

use pod_core::{
    admit::Refusal,
    cpus::{CpuError, CpuSet},
    numa_memory::MemoryError,
};

use super::topology::TopologyError;
use crate::devices::DevicesError;

/// The error of a configuration or checkpoint that does not fit the machine.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("reserved-cpus: {reserved} is not a subset of online-cpus: {online}")]
    Offline { reserved: CpuSet, online: CpuSet },
    #[error(
        "[cpumanager] unable to determine reserved CPU resources for static policy; reserve some with \
         reservedSystemCPUs, systemReserved or kubeReserved"
    )]
    NothingReserved,
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal \
         {0})"
    )]
    TooMuchReserved(usize),
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NoSuchNode(i64),
    #[error(
        "the total amount {on_nodes:?} of type {resource:?} is not equal to the value {in_total:?} determined by Node \
         Allocatable feature; set reservedMemory to the sum of kubeReserved, systemReserved and evictionHard"
    )]
    ReservedOtherwise { resource: String, on_nodes: String, in_total: String },
    #[error("[memorymanager] you should specify the system reserved memory")]
    NoMemoryReserved,
    #[error(
        "start {manager} manager error: could not restore state from checkpoint: {source}, please drain this node \
         and delete the {name} manager checkpoint file \"{}\" before restarting Kubelet", path.display()
    )]
    State {
        manager: &'static str,
        name: &'static str,
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The error of a container that cannot be placed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotPlaced {
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    #[error(transparent)]
    Cpus(#[from] CpuError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error("write the checkpoint of CPUs and memory: {0}")]
    Save(#[from] std::io::Error),
}

impl From<NotPlaced> for Refusal {
    fn from(why: NotPlaced) -> Self {
        let text = why.to_string();
        let (reason, message) = match why {
            NotPlaced::Topology => ("TopologyAffinityError", text),
            NotPlaced::Cpus(
                error @ (CpuError::NoWholeCores { .. } | CpuError::TooFewCores { .. }),
            ) => (error.reason(), text),
            NotPlaced::Cpus(_)
            | NotPlaced::Memory(_)
            | NotPlaced::Devices(_)
            | NotPlaced::Save(_) => (
                "UnexpectedAdmissionError",
                format!("Allocate failed due to {text}, which is unexpected"),
            ),
        };
        Self { reason: reason.to_owned(), message }
    }
}
