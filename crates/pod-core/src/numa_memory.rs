//! Memory that containers have for themselves on NUMA nodes (the memory manager's policy `Static`): that of Guaranteed Pods,
//! huge pages included. What the nodes have left is reckoned from what was given, so that the two never disagree.

pub mod checkpoint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use crate::{
    QosClass, Role, members, qos_class,
    resources::whole,
    topology::{Hint, Hints, Mask, at_once, subsets},
};

/// Bytes by resource: `memory`, and `hugepages-` with a size.
pub type Amounts = BTreeMap<String, u64>;

/// What starts the names of huge pages' resources.
pub const HUGE_PAGES: &str = "hugepages-";

/// Some of one resource, of these nodes together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Block {
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<i64>,
    #[serde(rename = "type")]
    pub resource: String,
    /// In bytes.
    pub size: u64,
}

/// How much of one resource a node has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    reserved: u64,
    free: u64,
}

impl Table {
    /// Of which nothing has been given yet.
    pub fn new(total: u64, system_reserved: u64, allocatable: u64) -> Self {
        Self { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    }
}

/// What one node has, and with which nodes it is used together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    number_of_assignments: u64,
    memory_map: BTreeMap<String, Table>,
    cells: Vec<i64>,
}

type Nodes = BTreeMap<i64, Node>;

/// Why memory is not given, in upstream's words.
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

type Given = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// Who has which memory.
#[derive(Clone, Debug)]
pub struct NumaMemory {
    machine: BTreeMap<i64, BTreeMap<String, Table>>,
    given: Given,
}

impl NumaMemory {
    /// Nobody has any yet of what the nodes have.
    pub fn new(machine: BTreeMap<i64, BTreeMap<String, Table>>) -> Self {
        Self { machine, given: Given::new() }
    }

    /// All that may be given away, each node's for itself.
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

    /// What a container has.
    pub fn given(&self, uid: &str, container: &str) -> &[Block] {
        let given = self.given.get(uid).and_then(|of_pod| of_pod.get(container));
        given.map(Vec::as_slice).unwrap_or_default()
    }

    /// The nodes whose memory a container is to use; none if any.
    pub fn nodes(&self, uid: &str, container: &str) -> BTreeSet<i64> {
        self.given(uid, container).iter().flat_map(|block| block.nodes.iter().copied()).collect()
    }

    /// The Pods that have memory for themselves.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }

    /// A Pod's memory may be given to others. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        self.given.remove(uid).is_some()
    }

    /// What a container is to have for itself.
    pub fn asked(pod: &Pod, container: &Container) -> Amounts {
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

    /// Where a container's memory can be had.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Vec<Hints> {
        let wanted = Self::asked(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let given = self.given(uid, &container.name);
        if given.is_empty() {
            return said(&self.near(pod, &container.name, &wanted), wanted.len());
        }
        let same = given.len() == wanted.len()
            && given.iter().all(|block| wanted.get(&block.resource) == Some(&block.size));
        let hint = |block: &Block| {
            Some(vec![Hint { nodes: Some(Mask::of(block.nodes.clone())), preferred: true }])
        };
        if same { given.iter().map(hint).collect() } else { Vec::new() }
    }

    /// Where all of a Pod's memory can be had together.
    pub fn pod_hints(&self, pod: &Pod) -> Vec<Hints> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut wanted: Amounts =
            members(pod).iter().flat_map(|member| Self::asked(pod, &member.container)).collect();
        for (resource, amount) in &mut wanted {
            let of = |container: &Container| {
                let asked = Self::asked(pod, container).get(resource).copied();
                usize::try_from(asked.unwrap_or(0)).unwrap_or(usize::MAX)
            };
            *amount = at_once(pod, of) as u64;
        }
        let given = self.given.get(uid).into_iter().flat_map(|of_pod| of_pod.values().flatten());
        let nodes: Vec<i64> = given.flat_map(|block| block.nodes.iter().copied()).collect();
        let had = vec![Hint { nodes: Some(Mask::of(nodes.clone())), preferred: true }];
        let hints = if nodes.is_empty() { self.near(pod, "", &wanted) } else { had };
        said(&hints, wanted.len())
    }

    /// Gives a container its memory, near the wanted nodes and, if these have too little, of more. Returns whether it had
    /// none before.
    pub fn allot(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: Hint,
    ) -> Result<bool, MemoryError> {
        let wanted = Self::asked(pod, container);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if wanted.is_empty() || !self.given(uid, &container.name).is_empty() {
            return Ok(false);
        }
        let (nodes, hints) = (self.state(), self.near(pod, &container.name, &wanted));
        let mut chosen = match near.nodes {
            Some(mask) => mask,
            None => {
                let best = best(hints.iter()).ok_or(MemoryError::NoNodes)?;
                if near.preferred && !best.preferred {
                    return Err(MemoryError::NotPreferred);
                }
                best.nodes.unwrap_or_default()
            }
        };
        if !wanted.iter().all(|(resource, size)| free(&nodes, chosen, resource) >= *size) {
            let further = hints.iter().filter(|hint| {
                hint.nodes.is_some_and(|nodes| chosen.nodes().all(|node| nodes.has(node)))
            });
            let best = best(further).ok_or(MemoryError::NoFurtherNodes)?;
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
        let blocks: Vec<Block> = wanted.into_iter().map(block).collect();
        self.reuse(pod, &container.name, &blocks);
        let of_pod = self.given.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), blocks);
        Ok(true)
    }

    /// What the nodes have left by what was given.
    fn state(&self) -> Nodes {
        let node = |(number, tables): (&i64, &BTreeMap<String, Table>)| {
            let (memory_map, cells) = (tables.clone(), vec![*number]);
            (*number, Node { number_of_assignments: 0, memory_map, cells })
        };
        let mut nodes: Nodes = self.machine.iter().map(node).collect();
        for block in self.given.values().flat_map(BTreeMap::values).flatten() {
            let mut left = block.size;
            for number in &block.nodes {
                let Some(node) = nodes.get_mut(number) else { continue };
                node.number_of_assignments += 1;
                node.cells.clone_from(&block.nodes);
                let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
                let taken = left.min(table.free);
                table.free -= taken;
                table.reserved += taken;
                left -= taken;
            }
        }
        nodes
    }

    /// The sets of nodes that have as much left of everything, and are not used in other sets.
    fn near(&self, pod: &Pod, container: &str, wanted: &Amounts) -> Vec<Hint> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let nodes = self.state();
        let numbers: Vec<i64> = nodes.keys().copied().collect();
        let allocatable = |mask: Mask, resource: &str| {
            let tables = mask.nodes().filter_map(|node| self.machine.get(&node)?.get(resource));
            tables.map(|table| table.allocatable).fold(0, u64::saturating_add)
        };
        let suffices = |mask: &Mask| wanted.iter().all(|(r, size)| allocatable(*mask, r) >= *size);
        let large: Vec<Mask> = subsets(&numbers).filter(suffices).collect();
        let fewest = large.iter().map(|mask| mask.count()).min().unwrap_or(0);
        let has = |mask: &Mask| {
            is_free_together(&nodes, *mask)
                && wanted.iter().all(|(resource, size)| {
                    let reusable = self.reusable(pod, container, *mask, resource);
                    free(&nodes, *mask, resource).saturating_add(reusable) >= *size
                })
        };
        let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == fewest };
        large.into_iter().filter(has).map(hint).collect()
    }

    /// The init containers before one, whose memory it may use: they have ended by then.
    fn before<'a>(pod: &'a Pod, container: &'a str) -> impl Iterator<Item = String> + 'a {
        let earlier = members(pod).into_iter();
        let earlier = earlier.take_while(move |member| member.container.name != container);
        let init = earlier.filter(|member| member.role == Role::Init);
        init.map(|member| member.container.name.clone())
    }

    fn reusable(&self, pod: &Pod, container: &str, mask: Mask, resource: &str) -> u64 {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let blocks = Self::before(pod, container)
            .flat_map(|name| self.given(uid, &name).to_vec())
            .filter(|block| block.resource == resource && Mask::of(block.nodes.clone()) == mask);
        blocks.map(|block| block.size).fold(0, u64::saturating_add)
    }

    /// What a container has of init containers before it is theirs no more.
    fn reuse(&mut self, pod: &Pod, container: &str, blocks: &[Block]) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let Some(of_pod) = self.given.get_mut(uid) else { return };
        for block in blocks {
            let mut left = block.size;
            for name in Self::before(pod, container) {
                let earlier = of_pod.get_mut(&name).into_iter().flatten();
                let same = |own: &&mut Block| {
                    (&own.resource, &own.nodes) == (&block.resource, &block.nodes)
                };
                for own in earlier.filter(same) {
                    let taken = left.min(own.size);
                    own.size -= taken;
                    left -= taken;
                }
            }
        }
    }
}

/// The same of each of so many resources; where there is nothing to be had, that is found out when it is to be given.
fn said(hints: &[Hint], resources: usize) -> Vec<Hints> {
    if hints.is_empty() { Vec::new() } else { vec![Some(hints.to_vec()); resources] }
}

fn best<'a>(hints: impl Iterator<Item = &'a Hint>) -> Option<Hint> {
    let rank = |hint: &Hint| (!hint.preferred, hint.nodes.map(|mask| (mask.count(), mask)));
    hints.copied().min_by_key(rank)
}

/// How much nodes have left together.
fn free(nodes: &Nodes, mask: Mask, resource: &str) -> u64 {
    let tables = mask.nodes().filter_map(|node| nodes.get(&node)?.memory_map.get(resource));
    tables.map(|table| table.free).fold(0, u64::saturating_add)
}

/// Whether no node of a set is used together with others, or for itself if these are several.
fn is_free_together(nodes: &Nodes, mask: Mask) -> bool {
    let numbers: Vec<i64> = mask.nodes().collect();
    numbers.iter().filter_map(|number| nodes.get(number)).all(|node| match numbers.len() {
        1 => node.cells.len() == 1,
        _ => node.number_of_assignments == 0 || node.cells == numbers,
    })
}
