//! Disks that a node's kubelet connects to itself, such as those of iSCSI. They have no VolumeAttachment: the Nodes'
//! `volumesAttached` is the only record of the nodes that may use them.

use std::collections::{BTreeMap, BTreeSet};

/// A disk and the nodes that may use it.
#[derive(Debug, Default)]
struct DirectDisk {
    /// The name in a Node's status.
    name: String,
    nodes: BTreeSet<String>,
}

/// The disks by the names of their PersistentVolumes.
#[derive(Debug, Default)]
pub(super) struct DirectDisks(BTreeMap<String, DirectDisk>);

impl DirectDisks {
    /// Adds a volume with the nodes whose statuses list it.
    pub(super) fn insert(&mut self, volume: &str, name: &str, nodes: BTreeSet<String>) {
        self.0.insert(volume.to_owned(), DirectDisk { name: name.to_owned(), nodes });
    }

    /// Returns the nodes that may use a volume.
    pub(super) fn nodes(&self, volume: &str) -> BTreeSet<String> {
        self.0.get(volume).map(|disk| disk.nodes.clone()).unwrap_or_default()
    }

    /// Sets whether a node may use a volume.
    pub(super) fn set(&mut self, volume: &str, node: &str, may_use: bool) {
        let Some(disk) = self.0.get_mut(volume) else { return };
        if may_use {
            disk.nodes.insert(node.to_owned());
        } else {
            disk.nodes.remove(node);
        }
    }

    /// Forgets a deleted volume and returns the nodes that could use it.
    pub(super) fn forget(&mut self, volume: &str) -> BTreeSet<String> {
        self.0.remove(volume).unwrap_or_default().nodes
    }

    /// Returns the volumes that a node may use, each with its name in the Node's status.
    pub(super) fn on_node(&self, node: &str) -> impl Iterator<Item = (&String, &String)> {
        let disks = self.0.iter().filter(move |(_, disk)| disk.nodes.contains(node));
        disks.map(|(volume, disk)| (volume, &disk.name))
    }

    /// Reports whether a PersistentVolume is known.
    pub(super) fn contains(&self, volume: &str) -> bool {
        self.0.contains_key(volume)
    }

    /// Returns the names of the known volumes in a Node's status.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.values().map(|disk| &disk.name)
    }
}
