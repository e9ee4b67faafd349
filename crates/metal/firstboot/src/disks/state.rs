//! The state of the disks stage for later stages, stored in a private file.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{error::Error, private_file::write_private};

/// The state for later stages: keys and devices of volumes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// The encrypted volumes by name.
    pub(crate) luks: BTreeMap<String, Volume>,
    /// The directories that the mount stage created as mount points. The files stage assigns homes among them to their
    /// users.
    #[serde(default)]
    pub(crate) directories: Vec<String>,
}

/// An encrypted volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// The UUID in the volume's header.
    pub(crate) uuid: String,
    /// The key in Base64; `None` if clevis unlocks the volume.
    pub(crate) key: Option<String>,
    /// `true` if discards pass through the volume.
    pub(crate) discard: bool,
    /// `true` if unlocking requires the network.
    #[serde(default)]
    pub(crate) network: bool,
}

impl State {
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        write_private(path, &text)
    }

    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        match fs::read(path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| Error::file("reading", path)(e.into()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::file("reading", path)(error)),
        }
    }
}
