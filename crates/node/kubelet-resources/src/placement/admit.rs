//! Allocates CPUs, memory and devices when a Pod is admitted.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_config::Scope;
use pod_core::{
    Member, Role,
    admit::Refusal,
    cpus::{CpuError, Cpus},
    devices::DeviceError,
    members,
    numa_memory::NumaMemory,
    topology::{Hint, Hints, Policy, merge},
};
use tokio::time::Instant;

use super::{Placement, allocations::Allocations, error::NotPlaced};
use crate::devices::DevicesError;

impl Placement {
    /// Allocates everything that a Pod requests, or refuses the Pod. Existing allocations of the Pod are kept.
    pub async fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        let began = Instant::now();
        self.counts.requests.inc();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let had = self.holders().contains(uid);
        let placed = self.place(pod).await;
        self.counts.durations.observe(began.elapsed().as_secs_f64() * 1000.0);
        let Err(why) = placed else { return Ok(()) };
        if !had {
            self.release(uid).await;
        }
        Err(self.refuse(why))
    }

    /// Counts an error and converts it to a refusal.
    fn refuse(&self, why: NotPlaced) -> Refusal {
        if self.settings.topology != Policy::None {
            self.counts.errors.inc();
        }
        if matches!(why, NotPlaced::Topology) && self.settings.topology == Policy::SingleNode {
            self.counts.record_misaligned(self.settings.scope);
        }
        why.into()
    }

    /// Allocates again for a running Pod whose allocations were lost. If that fails, the Pod keeps running without.
    pub async fn adopt(&self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let lacks = |container: &Container| {
            let name = &container.name;
            let state = self.lock();
            let cpus = state.allocations.cpus.as_ref().is_some_and(|cpus| {
                Cpus::requested(pod, container) > 0 && cpus.exclusive(uid, name).is_none()
            });
            let memory = state.allocations.memory.as_ref().is_some_and(|memory| {
                let requests_memory = !NumaMemory::requested(pod, container).is_empty();
                requests_memory && memory.blocks(uid, name).is_empty()
            });
            cpus || memory
        };
        let mut containers = members(pod).into_iter().filter(|one| one.role != Role::Ephemeral);
        if !containers.any(|one| lacks(&one.container)) {
            return;
        }
        if let Err(error) = self.place(pod).await {
            tracing::warn!(pod = %pod_core::namespaced_name(pod), %error, "allocate CPUs and memory to a running Pod \
                 whose allocations were lost; it keeps running without");
        }
    }

    async fn place(&self, pod: &Pod) -> Result<(), NotPlaced> {
        let by_nodes = self.settings.topology != Policy::None;
        let members = members(pod);
        let units = self.units(&members);
        // A Pod that requests no devices must not wait for a plugin that is answering for another Pod.
        let has_hints = |container: &&Container| {
            !self.devices.hints(pod, Some(container), &self.nodes.all).is_empty()
        };
        let turns = by_nodes && units.iter().flatten().any(has_hints);
        let mut freed = self.freed.subscribe();
        for unit in &units {
            loop {
                freed.mark_unchanged();
                let turn = if turns { Some(self.turn.lock().await) } else { None };
                let done = self.place_together(pod, unit).await;
                drop(turn);
                match done {
                    // A Pod that is about to end holds the missing resources.
                    Err(why) if self.is_held_by_ending_pod(&why) => drop(freed.changed().await),
                    Err(why) => return Err(why),
                    Ok(()) => break,
                }
            }
        }
        if self.settings.topology == Policy::SingleNode {
            self.counts.record_aligned(self.settings.scope, units.len());
        }
        Ok(self.save_if_allocated(pod).await?)
    }

    /// Returns the containers of a Pod in groups that are placed together.
    fn units<'a>(&self, members: &'a [Member<'_>]) -> Vec<Vec<&'a Container>> {
        let lasting = members.iter().filter(|member| member.role != Role::Ephemeral);
        let containers = lasting.map(|member| member.container.as_ref());
        match (self.settings.topology, self.settings.scope) {
            (Policy::None, _) | (_, Scope::Container) => containers.map(|one| vec![one]).collect(),
            (_, Scope::Pod) => vec![containers.collect()],
        }
    }

    async fn place_together(&self, pod: &Pod, unit: &[&Container]) -> Result<(), NotPlaced> {
        let near = self.allocate(&mut self.lock().allocations, pod, unit)?;
        for container in unit {
            self.devices.allocate(pod, container, near.nodes).await?;
        }
        Ok(())
    }

    fn is_held_by_ending_pod(&self, why: &NotPlaced) -> bool {
        let ending = self.lock().ending.clone();
        ending.iter().any(|uid| match why {
            NotPlaced::Topology => true,
            NotPlaced::Cpus(CpuError::TooFew { .. } | CpuError::TooFewCores { .. }) => {
                self.has_exclusive(uid)
            }
            NotPlaced::Memory(_) => {
                let state = self.lock();
                state
                    .allocations
                    .memory
                    .iter()
                    .flat_map(NumaMemory::holders)
                    .any(|holder| holder == uid)
            }
            NotPlaced::Devices(DevicesError::Device(DeviceError::TooFew { resource, .. })) => {
                self.devices.holds(uid, Some(resource))
            }
            NotPlaced::Cpus(_) | NotPlaced::Devices(_) | NotPlaced::Save(_) => false,
        })
    }

    /// Returns the NUMA nodes that all hints agree on, for one container or for all of a Pod.
    fn agree(
        &self,
        allocations: &Allocations,
        pod: &Pod,
        unit: &[&Container],
    ) -> Result<Hint, NotPlaced> {
        let container = match (self.settings.topology, self.settings.scope) {
            (Policy::None, _) => return Ok(Hint::default()),
            (_, Scope::Pod) => None,
            (_, Scope::Container) => unit.first().copied(),
        };
        let mut hints: Vec<Hints> = self.devices.hints(pod, container, &self.nodes.all);
        hints.extend(allocations.hints(pod, container));
        let (hint, agreed) = merge(self.settings.topology, &self.nodes, &hints);
        agreed.then_some(hint).ok_or(NotPlaced::Topology)
    }

    /// Agrees on NUMA nodes and allocates the CPUs and memory that the containers lack. An error leaves
    /// `allocations` unchanged.
    fn allocate(
        &self,
        allocations: &mut Allocations,
        pod: &Pod,
        unit: &[&Container],
    ) -> Result<Hint, NotPlaced> {
        let near = self.agree(allocations, pod, unit)?;
        let mut all = allocations.clone();
        for container in unit {
            let done = all.allocate(pod, container, near);
            self.counts.record_allocation(pod, container, &all, done.as_ref().err());
            done?;
        }
        *allocations = all;
        Ok(near)
    }

    /// Returns the refusal that [`Self::admit`] would give for a Pod that is refused for another reason anyway.
    /// Upstream's kubelet reports the topology error first.
    pub fn refusal(&self, pod: &Pod) -> Option<Refusal> {
        self.counts.requests.inc();
        let (members, mut allocations) = (members(pod), self.lock().allocations.clone());
        let mut units = self.units(&members).into_iter();
        let why = units.find_map(|unit| self.allocate(&mut allocations, pod, &unit).err())?;
        (!self.is_held_by_ending_pod(&why)).then(|| self.refuse(why))
    }

    /// Writes the checkpoints if a Pod has allocations.
    async fn save_if_allocated(&self, pod: &Pod) -> std::io::Result<()> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let has = self.lock().allocations.holders().any(|holder| holder == uid);
        if has { self.save().await } else { Ok(()) }
    }
}
