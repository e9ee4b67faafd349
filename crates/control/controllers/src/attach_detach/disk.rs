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

/// The prefix of the names of CSI volumes in a Node's status.
const CSI: &str = "kubernetes.io/csi/";
/// The prefix of the names of this controller's VolumeAttachments.
const ATTACHMENT: &str = "csi-";

/// Reports whether this controller gives such names to VolumeAttachments.
pub(super) fn is_attachment_name(name: &str) -> bool {
    let hash = name.strip_prefix(ATTACHMENT);
    hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl CsiVolume {
    /// The volume's name in a Node's status.
    pub(super) fn unique_name(&self) -> String {
        format!("{CSI}{}^{}", self.driver, self.volume_handle)
    }

    /// Returns the volume of a VolumeAttachment among those that a node uses. The attachment's name is a hash of the
    /// volume's handle.
    pub(super) fn in_use(
        used: &[String],
        driver: &str,
        node: &str,
        attachment: &str,
    ) -> Option<Self> {
        let prefix = format!("{CSI}{driver}^");
        let handles = used.iter().filter_map(|name| name.strip_prefix(&prefix));
        let volumes = handles
            .map(|handle| Self { driver: driver.to_owned(), volume_handle: handle.to_owned() });
        volumes.into_iter().find(|volume| volume.attachment(node) == attachment)
    }

    /// The name of the volume's VolumeAttachment for a node.
    pub(super) fn attachment(&self, node: &str) -> String {
        let hash = Sha256::digest([&self.volume_handle, &self.driver, node].concat());
        format!("{ATTACHMENT}{}", HEXLOWER.encode(&hash))
    }
}
