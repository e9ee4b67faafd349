//! The description of an iSCSI disk and its validation. The author of a Pod chooses it, and its parts become arguments
//! of `iscsiadm` and names of files.

use k8s_openapi::api::core::v1::{
    ISCSIPersistentVolumeSource, ISCSIVolumeSource, LocalObjectReference, SecretReference,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The default port of iSCSI targets.
const PORT: &str = "3260";

/// A disk of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    /// The address of the target as the volume has it, without a default port.
    pub(crate) address: String,
    /// The addresses of the target with their ports, the first one first.
    pub(crate) portals: Vec<String>,
    pub(crate) iqn: String,
    pub(crate) lun: i32,
    /// The name of the interface's record of `iscsiadm`.
    pub(crate) interface: String,
}

/// A volume's use of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) target: Target,
    pub(crate) fs_type: String,
    pub(crate) read_only: bool,
    pub(crate) discovery_secrets: bool,
    pub(crate) session_secrets: bool,
    /// The namespace, empty for the Pod's own, and the name.
    pub(crate) secret: Option<SecretReference>,
}

/// The file systems that may be mounted. Others, such as proc and overlay, show parts of the host and need no disk.
const FILE_SYSTEMS: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "ntfs", "ntfs3", "vfat"];

impl Source {
    pub(crate) fn inline(source: &ISCSIVolumeSource) -> Result<Self, Error> {
        let source = source.clone();
        let name =
            |LocalObjectReference { name }| SecretReference { name: Some(name), namespace: None };
        Self::persistent(&ISCSIPersistentVolumeSource {
            chap_auth_discovery: source.chap_auth_discovery,
            chap_auth_session: source.chap_auth_session,
            fs_type: source.fs_type,
            initiator_name: source.initiator_name,
            iqn: source.iqn,
            iscsi_interface: source.iscsi_interface,
            lun: source.lun,
            portals: source.portals,
            read_only: source.read_only,
            secret_ref: source.secret_ref.map(name),
            target_portal: source.target_portal,
        })
    }

    pub(crate) fn persistent(source: &ISCSIPersistentVolumeSource) -> Result<Self, Error> {
        let invalid = |field: &'static str, value: &str, expected: &'static str| Error::Iscsi {
            field,
            value: value.to_owned(),
            expected,
        };
        if let Some(name) = source.initiator_name.as_deref().filter(|name| !name.is_empty()) {
            let expected =
                "absent: set InitiatorName in /etc/iscsi/initiatorname.iscsi of the node";
            return Err(invalid("initiatorName", name, expected));
        }
        let mut portals: Vec<String> = Vec::new();
        for portal in std::iter::once(&source.target_portal).chain(source.portals.iter().flatten())
        {
            if !is_word(portal, ".-_:[]") {
                return Err(invalid("targetPortal", portal, "an address with an optional port"));
            }
            let portal = with_port(portal);
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        if !is_word(&source.iqn, ".-:") {
            return Err(invalid("iqn", &source.iqn, "a name such as iqn.2001-04.com.example:disk"));
        }
        let interface = source.iscsi_interface.as_deref().unwrap_or_default();
        let interface = if interface.is_empty() { "default" } else { interface };
        if !is_word(interface, ".-_:") {
            return Err(invalid("iscsiInterface", interface, "the name of an interface"));
        }
        if !(0..=255).contains(&source.lun) {
            return Err(invalid("lun", &source.lun.to_string(), "a number from 0 to 255"));
        }
        let fs_type = source.fs_type.as_deref().filter(|fs_type| !fs_type.is_empty());
        let fs_type = fs_type.unwrap_or("ext4");
        if !FILE_SYSTEMS.contains(&fs_type) {
            return Err(invalid("fsType", fs_type, "a file system of disks, such as ext4 or xfs"));
        }
        Ok(Self {
            target: Target {
                address: source.target_portal.clone(),
                portals,
                iqn: source.iqn.clone(),
                lun: source.lun,
                interface: interface.to_owned(),
            },
            fs_type: fs_type.to_owned(),
            read_only: source.read_only == Some(true),
            discovery_secrets: source.chap_auth_discovery == Some(true),
            session_secrets: source.chap_auth_session == Some(true),
            secret: source.secret_ref.clone(),
        })
    }
}

impl Target {
    /// Returns the name of the disk's directory, as upstream.
    pub(crate) fn directory(&self) -> String {
        let portal = self.portals.first().map_or("", String::as_str);
        format!("{portal}-{}-lun-{}", self.iqn, self.lun)
    }

    /// Returns the name of the disk's link in `/dev/disk/by-path` for one portal.
    pub(crate) fn link(&self, portal: &str) -> String {
        format!("ip-{portal}-iscsi-{}-lun-{}", self.iqn, self.lun)
    }

    /// Returns the disk's name in a Node's status, as upstream.
    pub(crate) fn unique_name(&self) -> String {
        format!("kubernetes.io/iscsi/{}:{}:{}", self.address, self.iqn, self.lun)
    }
}

/// Reports whether a text can be neither an option nor a path.
fn is_word(text: &str, more: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    let starts = |c: char| c.is_ascii_alphanumeric() || c == '[';
    text.len() <= 223 && text.starts_with(starts) && text.chars().all(fits)
}

fn with_port(portal: &str) -> String {
    let after_address = portal.rsplit(']').next().unwrap_or_default();
    let is_bare_v6 = !portal.starts_with('[') && portal.matches(':').count() > 1;
    match (is_bare_v6, after_address.contains(':')) {
        (true, _) => format!("[{portal}]:{PORT}"),
        (false, true) => portal.to_owned(),
        (false, false) => format!("{portal}:{PORT}"),
    }
}
