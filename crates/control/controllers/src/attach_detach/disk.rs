//! The volumes that are attached to nodes, and their names.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::views::{CsiVolume, IscsiVolume, PersistentVolume};

/// The prefix of the names of iSCSI disks in a Node's status.
pub(super) const ISCSI: &str = "kubernetes.io/iscsi/";

/// A volume that must be attached to a node.
#[derive(Clone, Copy)]
pub(super) enum Disk<'a> {
    Csi(&'a CsiVolume),
    Iscsi(&'a IscsiVolume),
}

impl<'a> Disk<'a> {
    pub(super) fn of(volume: &'a PersistentVolume) -> Option<Self> {
        let spec = &volume.spec;
        spec.csi.as_ref().map(Self::Csi).or_else(|| spec.iscsi.as_ref().map(Self::Iscsi))
    }

    /// Returns the volume's name in a Node's status.
    pub(super) fn unique_name(self) -> String {
        match self {
            Self::Csi(csi) => csi.unique_name(),
            Self::Iscsi(IscsiVolume { target_portal, iqn, lun }) => {
                format!("{ISCSI}{target_portal}:{iqn}:{lun}")
            }
        }
    }
}

impl CsiVolume {
    /// The volume's name in a Node's status.
    pub(super) fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.volume_handle)
    }

    /// The name of the volume's VolumeAttachment for a node.
    pub(super) fn attachment(&self, node: &str) -> String {
        let hash = Sha256::digest([&self.volume_handle, &self.driver, node].concat());
        format!("csi-{}", HEXLOWER.encode(&hash))
    }
}
