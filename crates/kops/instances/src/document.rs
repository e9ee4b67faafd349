//! A machine's identity document.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sys::process::PidFile;

use crate::{error::Error, json, volume::AttachedVolume};

/// A machine's identity document, written at its creation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// The cluster's name.
    pub cluster: String,
    /// The group's name.
    pub group: String,
    /// The machine's name.
    pub name: String,
    /// The ID, different for each machine, also of the same name.
    pub id: String,
    /// The creation time in seconds since the epoch, not before the end of the previous machine of the same name.
    pub made: i64,
    /// The machine's address.
    pub address: IpAddr,
    /// The host's address on the link: the default gateway, and the address of the fleet's companions.
    pub gateway: IpAddr,
    /// The parent cgroup of the machine's Pods.
    pub cgroup: String,
    /// `true` if the machine sees the secret directories and has volumes.
    pub trusted: bool,
    /// The input of the machine's program.
    pub user_data: String,
    /// The attached volumes. A trusted machine without any has the directory of an earlier version.
    #[serde(default)]
    pub volumes: Vec<AttachedVolume>,
}

impl Machine {
    /// Reads a machine's document.
    pub fn load(path: &Path) -> Result<Self, Error> {
        json::read(path)?.ok_or_else(|| Error::MissingDocument { path: path.to_owned() })
    }

    /// Returns the version of the user data that the machine was created with.
    pub fn version(&self) -> String {
        version(&self.user_data)
    }
}

/// Returns the path of the document of a machine, by its root directory.
pub(crate) fn path(root: &Path) -> PathBuf {
    root.join("document/machine.json")
}

/// Returns the PID file of the first process of a machine, by its root directory.
pub(crate) fn pid_file(root: &Path) -> PidFile {
    PidFile(root.join("machine.pid"))
}

/// Returns a short hash that identifies user data.
pub(crate) fn version(user_data: &str) -> String {
    let sum = Sha256::digest(user_data.as_bytes());
    HEXLOWER.encode(sum.get(..8).unwrap_or(&sum))
}
