//! The checkpoint of memory in upstream's format (`memory_manager_state`), so that each kubelet can take over the
//! other's node.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::{Deserialize, Serialize};

use super::{Block, Nodes, NumaMemory};
use crate::{
    checkpoint::{ChecksumError, Header, PolicyError, PolicyFile, read},
    spec::fnv1a,
};

const STATIC: &str = "Static";

/// The error of a checkpoint that cannot be restored. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("it cannot be read: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    #[error("[memorymanager] {0}")]
    Policy(#[from] PolicyError),
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA that does not exist"
    )]
    NoNode { pod: String, container: String },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory resource that does \
         not exist"
    )]
    NoResource { pod: String, container: String },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    Other,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    policy_name: String,
    machine_state: Nodes,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Option<Vec<Block>>>>,
    checksum: u64,
}

fn join<T>(each: impl Iterator<Item = T>, text: impl Fn(T) -> String) -> String {
    each.map(text).collect::<Vec<_>>().join(" ")
}

fn numbers(numbers: &[i64]) -> String {
    format!("([]int)[{}]", join(numbers.iter(), i64::to_string))
}

impl PolicyFile for File {
    fn header(&self) -> Header<'_> {
        Header { policy: &self.policy_name, checksum: self.checksum }
    }

    /// Returns the hash of Go's printed form of the value, which upstream compares.
    fn checksum(&self) -> u64 {
        let nodes = join(self.machine_state.iter(), |(number, node)| {
            let tables = join(node.memory_map.iter(), |(resource, table)| {
                let fields = [
                    ("TotalMemSize", table.total),
                    ("SystemReserved", table.system_reserved),
                    ("Allocatable", table.allocatable),
                    ("Reserved", table.reserved),
                    ("Free", table.free),
                ];
                let fields = join(fields.iter(), |(name, value)| format!("{name}:(uint64){value}"));
                format!("{resource}:<*>{{{fields}}}")
            });
            format!(
                "{number}:<*>{{NumberOfAssignments:(int){} \
                 MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{tables}] Cells:{}}}",
                node.number_of_assignments,
                numbers(&node.cells)
            )
        });
        let entries = join(self.entries.iter(), |(uid, of_pod)| {
            let containers = join(of_pod.iter(), |(name, blocks)| {
                let Some(blocks) = blocks else { return format!("{name}:<nil>") };
                let blocks = join(blocks.iter(), |block| {
                    format!(
                        "{{NUMAAffinity:{} Type:(v1.ResourceName){} Size:(uint64){}}}",
                        numbers(&block.nodes),
                        block.resource,
                        block.size
                    )
                });
                format!("{name}:[{blocks}]")
            });
            format!("{uid}:map[{containers}]")
        });
        let mut printed =
            format!("(*state.MemoryManagerCheckpoint){{PolicyName:(string){}", self.policy_name);
        let _ = write!(
            printed,
            " MachineState:(state.NUMANodeMap)map[{nodes}] Entries:(state.ContainerMemoryAssignments)map[{entries}] \
             Checksum:(checksum.Checksum)0}}"
        );
        u64::from(fnv1a(printed.as_bytes()))
    }
}

impl File {
    fn encode(mut self) -> Vec<u8> {
        self.checksum = self.checksum();
        serde_json::to_vec(&self).unwrap_or_default()
    }
}

/// Encodes the checkpoint of the policy `None`, without allocations.
pub fn none() -> Vec<u8> {
    let (machine_state, entries) = Default::default();
    File { policy_name: "None".to_owned(), machine_state, entries, checksum: 0 }.encode()
}

/// Checks that a checkpoint belongs to the policy `None`. The error names the checkpoint's policy.
pub fn is_none(checkpoint: &[u8]) -> Result<(), StateError> {
    read::<File, StateError>(checkpoint, "None").map(drop)
}

impl NumaMemory {
    /// Encodes the checkpoint.
    pub fn checkpoint(&self) -> Vec<u8> {
        let of_pod = |of_pod: &BTreeMap<String, Vec<Block>>| {
            of_pod.iter().map(|(name, blocks)| (name.clone(), Some(blocks.clone()))).collect()
        };
        let entries = self.pods.iter().map(|(uid, blocks)| (uid.clone(), of_pod(blocks))).collect();
        let (policy_name, machine_state) = (STATIC.to_owned(), self.state());
        File { policy_name, machine_state, entries, checksum: 0 }.encode()
    }

    /// Restores the allocations of an earlier kubelet, if they fit the machine and the reserved memory.
    pub fn restore(mut self, checkpoint: &[u8]) -> Result<Self, StateError> {
        let file: File = read::<_, StateError>(checkpoint, STATIC)?;
        if file.machine_state.is_empty() {
            // An empty state is upstream's checkpoint without allocations; treat it as if there were none.
            return if file.entries.is_empty() { Ok(self) } else { Err(StateError::NoMachine) };
        }
        for (pod, containers) in file.entries {
            for (container, blocks) in containers {
                let (pod, container) = (pod.clone(), container);
                let blocks = blocks.unwrap_or_default();
                for block in &blocks {
                    let tables: Option<Vec<_>> =
                        block.nodes.iter().map(|node| self.machine.get(node)).collect();
                    let Some(tables) = tables else {
                        return Err(StateError::NoNode { pod, container });
                    };
                    if !tables.iter().all(|tables| tables.contains_key(&block.resource)) {
                        return Err(StateError::NoResource { pod, container });
                    }
                }
                self.pods.entry(pod).or_default().insert(container, blocks);
            }
        }
        if is_same(&self.state(), &file.machine_state) { Ok(self) } else { Err(StateError::Other) }
    }
}

/// Reports whether two states are equal. For nodes that are used together, only the sums of free and reserved memory
/// are compared, because the split between them may differ.
fn is_same(own: &Nodes, stored: &Nodes) -> bool {
    let left = |nodes: &Nodes, cells: &[i64], resource: &String| {
        let tables = cells.iter().filter_map(|cell| nodes.get(cell)?.memory_map.get(resource));
        tables.fold((0_u64, 0_u64), |(free, reserved), table| {
            (free.saturating_add(table.free), reserved.saturating_add(table.reserved))
        })
    };
    own.len() == stored.len()
        && own.iter().all(|(number, node)| {
            let Some(other) = stored.get(number) else { return false };
            let uses = |node: &super::Node| {
                let mut cells = node.cells.clone();
                cells.sort_unstable();
                (node.number_of_assignments, cells, node.memory_map.len())
            };
            uses(node) == uses(other)
                && node.memory_map.iter().all(|(resource, table)| {
                    let has = |t: &super::Table| (t.total, t.system_reserved, t.allocatable);
                    let theirs = other.memory_map.get(resource);
                    theirs.is_some_and(|theirs| has(theirs) == has(table))
                        && left(own, &node.cells, resource) == left(stored, &node.cells, resource)
                })
        })
}
