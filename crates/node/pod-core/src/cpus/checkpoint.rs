//! The checkpoint of CPUs in upstream's format (`cpu_manager_state`), so that each kubelet can take over the other's
//! node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CpuSet, Cpus};
use crate::{
    checkpoint::{ChecksumError, Header, PolicyError, PolicyFile, read},
    spec::fnv1a,
};

/// The name of the policy with exclusive CPUs.
pub const STATIC: &str = "static";

/// The error of a checkpoint that cannot be restored. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("it cannot be read: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("default cpuset cannot be empty")]
    NothingShared,
    #[error(transparent)]
    Set(#[from] super::SetError),
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(
        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
    )]
    Overlap { pod: String, container: String, cpus: CpuSet, shared: CpuSet },
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    Reserved { reserved: CpuSet, shared: CpuSet },
    #[error(
        "some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\""
    )]
    Strict { reserved: CpuSet, shared: CpuSet },
    #[error(
        "current set of available CPUs \"{there}\" doesn't match with CPUs in state \"{listed}\""
    )]
    Other { there: CpuSet, listed: CpuSet },
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

impl PolicyFile for File {
    fn header(&self) -> Header<'_> {
        Header { policy: &self.policy_name, checksum: self.checksum }
    }

    /// Returns the hash of Go's printed form of the value, which upstream compares.
    fn checksum(&self) -> u64 {
        let of_pod = |(uid, containers): (&String, &BTreeMap<String, String>)| {
            let each: Vec<String> =
                containers.iter().map(|(c, set)| format!("{c}:{set}")).collect();
            format!("{uid}:map[{}]", each.join(" "))
        };
        let entries: Vec<String> = self.entries.iter().map(of_pod).collect();
        let printed = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            entries.join(" ")
        );
        u64::from(fnv1a(printed.as_bytes()))
    }
}

/// Encodes the checkpoint of the policy `none`, without allocations.
pub fn none() -> Vec<u8> {
    encode("none", String::new(), BTreeMap::new())
}

fn encode(
    policy: &str,
    default_cpu_set: String,
    entries: BTreeMap<String, BTreeMap<String, String>>,
) -> Vec<u8> {
    let mut file = File { policy_name: policy.to_owned(), default_cpu_set, entries, checksum: 0 };
    file.checksum = file.checksum();
    serde_json::to_vec(&file).unwrap_or_default()
}

/// Checks that a checkpoint belongs to a policy. The error names the checkpoint's policy.
pub fn is_of(checkpoint: &[u8], configured: &'static str) -> Result<(), StateError> {
    read::<File, StateError>(checkpoint, configured).map(drop)
}

impl Cpus {
    /// Encodes the checkpoint.
    pub fn checkpoint(&self) -> Vec<u8> {
        let text = |of_pod: &BTreeMap<String, CpuSet>| {
            of_pod.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
        };
        let entries = self.pods.iter().map(|(uid, of_pod)| (uid.clone(), text(of_pod))).collect();
        encode(STATIC, self.shared.to_string(), entries)
    }

    /// Restores the allocations of an earlier kubelet, if they fit the machine and the reserved CPUs.
    pub fn restore(mut self, checkpoint: &[u8]) -> Result<Self, StateError> {
        let file: File = read::<_, StateError>(checkpoint, STATIC)?;
        let shared: CpuSet = file.default_cpu_set.parse()?;
        let all: CpuSet = self.machine.keys().copied().collect();
        let reserved = self.reserved.clone();
        if shared.is_empty() {
            // An empty set is upstream's checkpoint without allocations; treat it as if there were none.
            return if file.entries.is_empty() { Ok(self) } else { Err(StateError::NothingShared) };
        }
        if self.options.strict && !reserved.is_apart(&shared) {
            return Err(StateError::Strict { reserved, shared });
        }
        if !self.options.strict && !reserved.without(&shared).is_empty() {
            return Err(StateError::Reserved { reserved, shared });
        }
        let mut listed = if self.options.strict { shared.and(&reserved) } else { shared.clone() };
        for (pod, containers) in file.entries {
            for (container, cpus) in containers {
                let cpus: CpuSet = cpus.parse()?;
                if !cpus.is_apart(&shared) {
                    return Err(StateError::Overlap { pod, container, cpus, shared });
                }
                listed = listed.and(&cpus);
                self.pods.entry(pod.clone()).or_default().insert(container, cpus);
            }
        }
        if listed != all {
            return Err(StateError::Other { there: all, listed });
        }
        self.shared = shared;
        Ok(self)
    }
}
