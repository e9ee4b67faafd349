//! Allocations of CPUs and memory, and their checkpoint files.

use std::error::Error;

use k8s_openapi::api::core::v1::{Container, Pod};
use pod_core::{
    cpus::{self, Cpus},
    numa_memory::{self, NumaMemory},
    topology::{Hint, Hints},
};

use super::error::{NotPlaced, PlacementError};
use crate::checkpoint::Checkpoint;

/// The allocations of the CPU and the memory manager. `None` stands for a policy that allocates nothing exclusively.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    pub(super) cpus: Option<Cpus>,
    pub(super) memory: Option<NumaMemory>,
}

impl Allocations {
    /// Returns the UIDs of the Pods with allocations.
    pub(super) fn holders(&self) -> impl Iterator<Item = &str> {
        let memory = self.memory.iter().flat_map(NumaMemory::holders);
        self.cpus.iter().flat_map(Cpus::holders).chain(memory)
    }

    /// Allocates the CPUs and memory that a container lacks.
    pub(super) fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: Hint,
    ) -> Result<(), NotPlaced> {
        if let Some(cpus) = &mut self.cpus {
            cpus.allocate(pod, container, near.nodes)?;
        }
        if let Some(memory) = &mut self.memory {
            memory.allocate(pod, container, near)?;
        }
        Ok(())
    }

    /// Releases the allocations of a Pod. Returns `true` if it had any.
    pub(super) fn release(&mut self, uid: &str) -> bool {
        let cpus = self.cpus.as_mut().is_some_and(|cpus| cpus.release(uid));
        let memory = self.memory.as_mut().is_some_and(|memory| memory.release(uid));
        cpus || memory
    }

    /// Returns the hints for the CPUs and memory of one container, or of all of a Pod.
    pub(super) fn hints(&self, pod: &Pod, container: Option<&Container>) -> Vec<Hints> {
        let of_cpus = |cpus: &Cpus| match container {
            Some(container) => cpus.hints(pod, container),
            None => cpus.pod_hints(pod),
        };
        let of_memory = |memory: &NumaMemory| match container {
            Some(container) => memory.hints(pod, container),
            None => memory.pod_hints(pod),
        };
        let memory = self.memory.iter().flat_map(of_memory);
        self.cpus.iter().map(of_cpus).chain(memory).collect()
    }
}

type Boxed = Box<dyn Error + Send + Sync>;

/// A manager with a checkpoint in upstream's format.
pub(super) trait Checkpointed: Sized {
    /// The manager's name in upstream's error and in its advice.
    const NAMES: (&'static str, &'static str);

    fn bytes(&self) -> Vec<u8>;
    /// Returns the checkpoint of the policy without exclusive allocations.
    fn none() -> Vec<u8>;
    fn is_none(checkpoint: &[u8]) -> Result<(), Boxed>;
    fn restored(self, checkpoint: &[u8]) -> Result<Self, Boxed>;
}

impl Checkpointed for Cpus {
    const NAMES: (&'static str, &'static str) = ("cpu", "CPU");

    fn bytes(&self) -> Vec<u8> {
        self.checkpoint()
    }

    fn none() -> Vec<u8> {
        cpus::checkpoint::none()
    }

    fn is_none(checkpoint: &[u8]) -> Result<(), Boxed> {
        Ok(cpus::checkpoint::is_of(checkpoint, "none")?)
    }

    fn restored(self, checkpoint: &[u8]) -> Result<Self, Boxed> {
        Ok(self.restore(checkpoint)?)
    }
}

impl Checkpointed for NumaMemory {
    const NAMES: (&'static str, &'static str) = ("memory", "memory");

    fn bytes(&self) -> Vec<u8> {
        self.checkpoint()
    }

    fn none() -> Vec<u8> {
        numa_memory::checkpoint::none()
    }

    fn is_none(checkpoint: &[u8]) -> Result<(), Boxed> {
        Ok(numa_memory::checkpoint::is_none(checkpoint)?)
    }

    fn restored(self, checkpoint: &[u8]) -> Result<Self, Boxed> {
        Ok(self.restore(checkpoint)?)
    }
}

/// Restores a manager from its checkpoint, if that fits, or creates the file.
pub(super) fn restore<T: Checkpointed>(
    file: &Checkpoint,
    fresh: Option<T>,
) -> Result<Option<T>, PlacementError> {
    let state = |source: Boxed| {
        let ((manager, name), path) = (T::NAMES, file.path().to_owned());
        PlacementError::State { manager, name, path, source }
    };
    let Some(bytes) = file.read().map_err(|error| state(error.into()))? else {
        let bytes = fresh.as_ref().map_or_else(T::none, T::bytes);
        file.begin(&bytes).map_err(|error| state(error.into()))?;
        return Ok(fresh);
    };
    match fresh {
        Some(fresh) => fresh.restored(&bytes).map(Some).map_err(state),
        None => T::is_none(&bytes).map(|()| None).map_err(state),
    }
}
