//! Exclusive memory on NUMA nodes (the memory manager's policy `Static`) for Guaranteed Pods, including huge pages.
//! Read [`NumaMemory`] first. The free memory of nodes is computed from the allocations, so both always agree. This
//! module does no I/O.

pub mod checkpoint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use crate::{
    qos::{QosClass, qos_class},
    resources::whole,
    spec::{Role, members},
    topology::{Hint, Hints, Mask, at_once, subsets},
};

/// Bytes by resource: `memory`, or `hugepages-` and a size.
pub type Amounts = BTreeMap<String, u64>;

/// The prefix of the resource names of huge pages.
pub const HUGE_PAGES: &str = "hugepages-";

/// An amount of one resource, allocated on these nodes together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Block {
    /// The NUMA nodes.
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<i64>,
    /// The resource name.
    #[serde(rename = "type")]
    pub resource: String,
    /// The amount in bytes.
    pub size: u64,
}

/// The amounts of one resource on a node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The installed amount.
    pub total: u64,
    /// The amount reserved for the system.
    pub system_reserved: u64,
    /// The amount that can be allocated to containers.
    pub allocatable: u64,
    reserved: u64,
    free: u64,
}

impl Table {
    /// Creates a table without allocations.
    pub fn new(total: u64, system_reserved: u64, allocatable: u64) -> Self {
        Self { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    }
}

/// The state of one node, and the nodes with which it is used together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    number_of_assignments: u64,
    memory_map: BTreeMap<String, Table>,
    cells: Vec<i64>,
}

type Nodes = BTreeMap<i64, Node>;

/// The error of an allocation of memory. The messages are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoNodes,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoFurtherNodes,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    FurtherNotPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    UsedOtherwise,
}

type Allocations = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// The allocation of memory to containers.
#[derive(Clone, Debug)]
pub struct NumaMemory {
    machine: BTreeMap<i64, BTreeMap<String, Table>>,
    pods: Allocations,
}

impl NumaMemory {
    /// Creates a state without allocations on these nodes.
    pub fn new(machine: BTreeMap<i64, BTreeMap<String, Table>>) -> Self {
        Self { machine, pods: Allocations::new() }
    }

    /// Returns all memory that can be allocated, by node.
    pub fn allocatable(&self) -> Vec<Block> {
        let of_node = |(node, tables): (&i64, &BTreeMap<String, Table>)| {
            let some = tables.iter().filter(|(_, table)| table.allocatable > 0);
            let block = |(resource, table): (&String, &Table)| Block {
                nodes: vec![*node],
                resource: resource.clone(),
                size: table.allocatable,
            };
            some.map(block).collect::<Vec<_>>()
        };
        self.machine.iter().flat_map(of_node).collect()
    }

    /// Returns the memory of a container.
    pub fn blocks(&self, uid: &str, container: &str) -> &[Block] {
        let blocks = self.pods.get(uid).and_then(|of_pod| of_pod.get(container));
        blocks.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the nodes whose memory a container must use. Empty means any node.
    pub fn nodes(&self, uid: &str, container: &str) -> BTreeSet<i64> {
        self.blocks(uid, container).iter().flat_map(|block| block.nodes.iter().copied()).collect()
    }

    /// Returns the UIDs of the Pods with exclusive memory.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// Releases a Pod's memory. Returns `true` if it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// Returns the exclusive memory that a container requests.
    pub fn requested(pod: &Pod, container: &Container) -> Amounts {
        let pod_level = pod.spec.as_ref().is_some_and(|spec| spec.resources.is_some());
        if qos_class(pod) != QosClass::Guaranteed || pod_level {
            return Amounts::new();
        }
        let resources = container.resources.as_ref();
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        let of_memory = |name: &str| name == "memory" || name.starts_with(HUGE_PAGES);
        let limits = limits.into_iter().flatten().filter(|(name, _)| of_memory(name));
        let amount = |quantity| u64::try_from(whole(quantity)).unwrap_or(0);
        limits.map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
    }

    /// Returns the topology hints for a container's memory.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Vec<Hints> {
        let requested = Self::requested(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let blocks = self.blocks(uid, &container.name);
        if blocks.is_empty() {
            return repeat_hints(&self.near(pod, &container.name, &requested), requested.len());
        }
        let same = blocks.len() == requested.len()
            && blocks.iter().all(|block| requested.get(&block.resource) == Some(&block.size));
        let hint = |block: &Block| {
            Some(vec![Hint { nodes: Some(Mask::of(block.nodes.clone())), preferred: true }])
        };
        if same { blocks.iter().map(hint).collect() } else { Vec::new() }
    }

    /// Returns the topology hints for all memory of a Pod together.
    pub fn pod_hints(&self, pod: &Pod) -> Vec<Hints> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut requested: Amounts = members(pod)
            .iter()
            .flat_map(|member| Self::requested(pod, &member.container))
            .collect();
        for (resource, amount) in &mut requested {
            let of = |container: &Container| {
                let requested = Self::requested(pod, container).get(resource).copied();
                usize::try_from(requested.unwrap_or(0)).unwrap_or(usize::MAX)
            };
            *amount = at_once(pod, of) as u64;
        }
        let blocks = self.pods.get(uid).into_iter().flat_map(|of_pod| of_pod.values().flatten());
        let nodes: Vec<i64> = blocks.flat_map(|block| block.nodes.iter().copied()).collect();
        let current = vec![Hint { nodes: Some(Mask::of(nodes.clone())), preferred: true }];
        let hints = if nodes.is_empty() { self.near(pod, "", &requested) } else { current };
        repeat_hints(&hints, requested.len())
    }

    /// Allocates memory to a container on the wanted nodes, and on more nodes if these have too little. Returns `false`
    /// if it has or needs none.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: Hint,
    ) -> Result<bool, MemoryError> {
        let requested = Self::requested(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if requested.is_empty() || !self.blocks(uid, &container.name).is_empty() {
            return Ok(false);
        }
        let (nodes, hints) = (self.state(), self.near(pod, &container.name, &requested));
        let mut chosen = match near.nodes {
            Some(mask) => mask,
            None => {
                let best = best_hint(hints.iter()).ok_or(MemoryError::NoNodes)?;
                if near.preferred && !best.preferred {
                    return Err(MemoryError::NotPreferred);
                }
                best.nodes.unwrap_or_default()
            }
        };
        if !requested.iter().all(|(resource, size)| free(&nodes, chosen, resource) >= *size) {
            let further = hints.iter().filter(|hint| {
                hint.nodes.is_some_and(|nodes| chosen.nodes().all(|node| nodes.has(node)))
            });
            let best = best_hint(further).ok_or(MemoryError::NoFurtherNodes)?;
            if near.preferred && !best.preferred {
                return Err(MemoryError::FurtherNotPreferred);
            }
            chosen = best.nodes.unwrap_or_default();
        }
        if !is_free_together(&nodes, chosen) && chosen.count() > 1 {
            return Err(MemoryError::UsedOtherwise);
        }
        let on: Vec<i64> = chosen.nodes().collect();
        let block = |(resource, size)| Block { nodes: on.clone(), resource, size };
        let blocks: Vec<Block> = requested.into_iter().map(block).collect();
        self.reuse(pod, &container.name, &blocks);
        let of_pod = self.pods.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), blocks);
        Ok(true)
    }

    /// Computes the state of the nodes from the allocations.
    fn state(&self) -> Nodes {
        let node = |(number, tables): (&i64, &BTreeMap<String, Table>)| {
            let (memory_map, cells) = (tables.clone(), vec![*number]);
            (*number, Node { number_of_assignments: 0, memory_map, cells })
        };
        let mut nodes: Nodes = self.machine.iter().map(node).collect();
        let mut blocks: Vec<&Block> =
            self.pods.values().flat_map(BTreeMap::values).flatten().collect();
        // Blocks on several nodes take what those on a single node leave; in another order, memory would be counted as
        // free that a container has.
        blocks.sort_by_key(|block| block.nodes.len());
        for block in blocks {
            let mut left = block.size;
            for number in &block.nodes {
                let Some(node) = nodes.get_mut(number) else { continue };
                node.number_of_assignments += 1;
                node.cells.clone_from(&block.nodes);
                let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
                let used = left.min(table.free);
                table.free -= used;
                table.reserved += used;
                left -= used;
            }
        }
        nodes
    }

    /// Returns the sets of nodes that have enough free memory of every resource and do not overlap sets in use.
    fn near(&self, pod: &Pod, container: &str, requested: &Amounts) -> Vec<Hint> {
        if requested.is_empty() {
            return Vec::new();
        }
        let nodes = self.state();
        let numbers: Vec<i64> = nodes.keys().copied().collect();
        let allocatable = |mask: Mask, resource: &str| {
            let tables = mask.nodes().filter_map(|node| self.machine.get(&node)?.get(resource));
            tables.map(|table| table.allocatable).fold(0, u64::saturating_add)
        };
        let suffices =
            |mask: &Mask| requested.iter().all(|(r, size)| allocatable(*mask, r) >= *size);
        let large: Vec<Mask> = subsets(&numbers).filter(suffices).collect();
        let fewest = large.iter().map(|mask| mask.count()).min().unwrap_or(0);
        let has = |mask: &Mask| {
            is_free_together(&nodes, *mask)
                && requested.iter().all(|(resource, size)| {
                    let reusable = self.reusable(pod, container, *mask, resource);
                    free(&nodes, *mask, resource).saturating_add(reusable) >= *size
                })
        };
        let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == fewest };
        large.into_iter().filter(has).map(hint).collect()
    }

    /// Returns the init containers that end before this container starts. Their memory can be reused.
    fn before<'a>(pod: &'a Pod, container: &'a str) -> impl Iterator<Item = String> + 'a {
        let earlier = members(pod).into_iter();
        let earlier = earlier.take_while(move |member| member.container.name != container);
        let init = earlier.filter(|member| member.role == Role::Init);
        init.map(|member| member.container.name.clone())
    }

    fn reusable(&self, pod: &Pod, container: &str, mask: Mask, resource: &str) -> u64 {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let blocks = Self::before(pod, container)
            .flat_map(|name| self.blocks(uid, &name).to_vec())
            .filter(|block| block.resource == resource && Mask::of(block.nodes.clone()) == mask);
        blocks.map(|block| block.size).fold(0, u64::saturating_add)
    }

    /// Takes reused memory from the init containers that had it.
    fn reuse(&mut self, pod: &Pod, container: &str, blocks: &[Block]) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let Some(of_pod) = self.pods.get_mut(uid) else { return };
        for block in blocks {
            let mut left = block.size;
            for name in Self::before(pod, container) {
                let earlier = of_pod.get_mut(&name).into_iter().flatten();
                let same = |own: &&mut Block| {
                    (&own.resource, &own.nodes) == (&block.resource, &block.nodes)
                };
                for own in earlier.filter(same) {
                    let used = left.min(own.size);
                    own.size -= used;
                    left -= used;
                }
            }
        }
    }
}

/// Repeats the hints for each resource. Without any hint the list is empty, and the allocation fails later.
fn repeat_hints(hints: &[Hint], resources: usize) -> Vec<Hints> {
    if hints.is_empty() { Vec::new() } else { vec![Some(hints.to_vec()); resources] }
}

fn best_hint<'a>(hints: impl Iterator<Item = &'a Hint>) -> Option<Hint> {
    let rank = |hint: &Hint| (!hint.preferred, hint.nodes.map(|mask| (mask.count(), mask)));
    hints.copied().min_by_key(rank)
}

/// Returns the free memory of these nodes together.
fn free(nodes: &Nodes, mask: Mask, resource: &str) -> u64 {
    let tables = mask.nodes().filter_map(|node| nodes.get(&node)?.memory_map.get(resource));
    tables.map(|table| table.free).fold(0, u64::saturating_add)
}

/// Reports whether the nodes can be used together: none of them is used in another set, or alone if there are several.
fn is_free_together(nodes: &Nodes, mask: Mask) -> bool {
    let numbers: Vec<i64> = mask.nodes().collect();
    numbers.iter().filter_map(|number| nodes.get(number)).all(|node| match numbers.len() {
        1 => node.cells.len() == 1,
        _ => node.number_of_assignments == 0 || node.cells == numbers,
    })
}
