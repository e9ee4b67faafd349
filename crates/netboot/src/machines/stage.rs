//! The stages of a boot, in their order.

use serde::{Deserialize, Serialize};

/// How far a boot has come. Later stages are greater: the greatest that was noted is how far the machine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It has been given an address, or a boot file beside another server's address.
    Dhcp,
    /// Its firmware has fetched a boot loader.
    Firmware,
    Ipxe,
    /// It has fetched kernel and initrd.
    Kernel,
    /// It was sent its Ignition config.
    Config,
    FetchOffline,
    Fetch,
    Kargs,
    Disks,
    Mount,
    Files,
    Umount,
    /// It has said that it is installed.
    Installed,
    /// It was told to boot from its disk.
    LocalDisk,
    Kubelet,
    Ready,
}

impl Stage {
    /// All stages, in the order that a boot goes through them.
    pub const ALL: [Self; 16] = [
        Self::Dhcp,
        Self::Firmware,
        Self::Ipxe,
        Self::Kernel,
        Self::Config,
        Self::FetchOffline,
        Self::Fetch,
        Self::Kargs,
        Self::Disks,
        Self::Mount,
        Self::Files,
        Self::Umount,
        Self::Installed,
        Self::LocalDisk,
        Self::Kubelet,
        Self::Ready,
    ];

    /// The name that machines report it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dhcp => "dhcp",
            Self::Firmware => "firmware",
            Self::Ipxe => "ipxe",
            Self::Kernel => "kernel",
            Self::Config => "config",
            Self::FetchOffline => "fetch-offline",
            Self::Fetch => "fetch",
            Self::Kargs => "kargs",
            Self::Disks => "disks",
            Self::Mount => "mount",
            Self::Files => "files",
            Self::Umount => "umount",
            Self::Installed => "installed",
            Self::LocalDisk => "local-disk",
            Self::Kubelet => "kubelet",
            Self::Ready => "ready",
        }
    }

    /// The stage that Ignition or a template reports by this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// What people read.
    pub fn title(self) -> &'static str {
        match self {
            Self::Dhcp => "DHCP",
            Self::Firmware => "firmware",
            Self::Ipxe => "iPXE",
            Self::Kernel => "kernel",
            Self::Config => "Ignition config",
            Self::FetchOffline => "Ignition fetch-offline",
            Self::Fetch => "Ignition fetch",
            Self::Kargs => "Ignition kargs",
            Self::Disks => "Ignition disks",
            Self::Mount => "Ignition mount",
            Self::Files => "Ignition files",
            Self::Umount => "Ignition umount",
            Self::Installed => "installed",
            Self::LocalDisk => "boot from disk",
            Self::Kubelet => "kubelet",
            Self::Ready => "Ready",
        }
    }

    /// Whether a machine may say of itself that it has come so far. The others we see.
    pub(crate) fn is_reported(self) -> bool {
        self >= Self::FetchOffline && self != Self::LocalDisk && self != Self::Ready
    }
}

/// How a stage ended, or that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Started,
    Succeeded,
    Failed,
}

impl Outcome {
    /// Reads the name by which a machine reports it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "started" => Some(Self::Started),
            "succeeded" => Some(Self::Succeeded),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// The name in reports and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}
