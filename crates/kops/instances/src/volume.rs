//! Volumes: the descriptions that the fleet's and the machine's documents have.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The directory of the nodes of block devices inside a machine. It is on a file system of the machine's own.
const DEVICES: &str = "/run/kops/volumes";

/// A volume of a fleet. It outlives its machine, and the next machine of that name gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// The ID, unique in the fleet.
    pub id: String,
    /// The name of the machine that it is attached to.
    pub machine: String,
    /// The size in GiB.
    pub size: u64,
    /// The tags, by which machines find it.
    pub tags: BTreeMap<String, String>,
}

/// A volume that is attached to a machine, as in the machine's document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachedVolume {
    /// The ID.
    pub id: String,
    /// The tags at the machine's creation.
    pub tags: BTreeMap<String, String>,
    /// The number of the loop device.
    pub device: u32,
}

impl AttachedVolume {
    /// Makes the node of the block device inside the machine, and returns its path.
    pub fn make_device(&self) -> Result<PathBuf, Error> {
        let directory = Path::new(DEVICES);
        sys::make_directories(directory, 0o700).map_err(sys::Error::at("creating", directory))?;
        let path = directory.join(&self.id);
        sys::make_block_device(&path, sys::LOOP_MAJOR, self.device)?;
        Ok(path)
    }

    /// Returns the path at which a machine mounts the volume, as upstream's etcd-manager.
    pub fn mount_point(&self) -> PathBuf {
        PathBuf::from(format!("/mnt/master-{}", self.id))
    }
}
