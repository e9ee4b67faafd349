//! Limits the memory that volumes take outside of their Pods' memory limits: the files that the kubelet writes, and the
//! mounts themselves.
//!
//! A Pod takes at most [`MAX_SPACE`]. Up to [`SMALL`] it always gets what it needs; larger Pods share a part of the
//! node's memory. So no number of large Pods takes the memory of the node, or the volumes of small Pods.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use pod_core::files::MAX_SPACE;

/// The space of a Pod that does not count towards the shared space, in bytes.
const SMALL: u64 = 2 << 20;

/// The part of the node's memory that all Pods with more than [`SMALL`] share.
const SHARED_PART: u64 = 8;

/// The space of a volume without files, in bytes: the kernel's structures for a mount.
const MOUNT: u64 = 64 << 10;

/// The error of a volume that does not get its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    #[error(
        "the volumes of the Pod take more than {} MiB in total, with 64 KiB for each volume; use fewer volumes or \
         select fewer keys",
        MAX_SPACE >> 20
    )]
    Pod,
    #[error(
        "the volumes of the Pod take more than {} MiB, and all such Pods of this node may take {} MiB together, an \
         eighth of its memory; select fewer keys, or run fewer such Pods on the node",
        SMALL >> 20,
        .shared >> 20
    )]
    Node { shared: u64 },
}

/// The space of the volumes of all Pods of a node.
pub struct VolumeSpace {
    shared: u64,
    pods: Mutex<BTreeMap<String, PodSpace>>,
}

#[derive(Default)]
struct PodSpace {
    total: u64,
    volumes: BTreeMap<String, u64>,
}

impl PodSpace {
    /// Returns the Pod's part of the shared space.
    fn shared(&self) -> u64 {
        if self.total > SMALL { self.total } else { 0 }
    }
}

impl VolumeSpace {
    /// Returns the space of a node with so much memory.
    pub fn new(memory: u64) -> Self {
        Self { shared: memory / SHARED_PART, pods: Mutex::default() }
    }

    /// Sets the space of a Pod's volume to that of its files. A volume that does not get it keeps what it had.
    pub(crate) fn set(&self, uid: &str, volume: &str, files: u64) -> Result<(), SpaceError> {
        let mut pods = self.pods.lock();
        let others: u64 = pods.iter().filter(|(pod, _)| *pod != uid).map(|(_, p)| p.shared()).sum();
        let pod = pods.entry(uid.to_owned()).or_default();
        let (before, after) = (pod.volumes.get(volume).copied().unwrap_or(0), MOUNT + files);
        let total = pod.total - before + after;
        if after > before && total > MAX_SPACE {
            return Err(SpaceError::Pod);
        }
        if after > before && total > SMALL && others + total > self.shared {
            return Err(SpaceError::Node { shared: self.shared });
        }
        pod.total = total;
        pod.volumes.insert(volume.to_owned(), after);
        Ok(())
    }

    /// Adds a volume without files, unless it is known.
    pub(crate) fn add(&self, uid: &str, volume: &str) -> Result<(), SpaceError> {
        let known = |pod: &PodSpace| pod.volumes.contains_key(volume);
        if self.pods.lock().get(uid).is_some_and(known) {
            return Ok(());
        }
        self.set(uid, volume, 0)
    }

    /// Releases the space of a Pod whose volumes are unmounted.
    pub(crate) fn release(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn large_pods_share_a_part_of_the_memory_and_small_ones_always_get_theirs() {
        let space = VolumeSpace::new(8 * 100 * MIB);
        for pod in ["a", "b"] {
            space.set(pod, "v", 40 * MIB).unwrap();
            space.set(pod, "v", 40 * MIB).unwrap();
        }
        let refused = SpaceError::Node { shared: 100 * MIB };
        assert_eq!(space.set("c", "v", 40 * MIB), Err(refused));
        assert!(refused.to_string().contains("100 MiB together"), "{refused}");
        for pod in 0..100 {
            space.set(&pod.to_string(), "v", MIB).unwrap();
        }
        // What is mounted may shrink and stay.
        space.set("a", "v", 30 * MIB).unwrap();
        space.add("a", "v").unwrap();
        space.release("b");
        space.set("c", "v", 40 * MIB).unwrap();
    }

    #[test]
    fn volumes_of_a_pod_are_limited_in_number_and_size() {
        let space = VolumeSpace::new(u64::MAX);
        let added = (0..10_000).take_while(|n| space.add("a", &n.to_string()).is_ok()).count();
        assert_eq!(added, 1024);
        assert_eq!(space.add("a", "more"), Err(SpaceError::Pod));
        space.set("b", "v", 63 * MIB).unwrap();
        assert_eq!(space.set("b", "w", MIB), Err(SpaceError::Pod));
        assert_eq!(space.set("b", "v", MAX_SPACE), Err(SpaceError::Pod));
        space.release("a");
        space.add("a", "more").unwrap();
    }
}
