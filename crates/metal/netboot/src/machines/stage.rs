//! The stages of a boot, in order.

use serde::{Deserialize, Serialize};

/// A stage of a boot. Later stages compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// DHCP assigned an address, or proxyDHCP a boot file.
    Dhcp,
    /// The firmware fetched a boot loader.
    Firmware,
    /// iPXE fetched its script.
    Ipxe,
    /// The machine fetched kernel and initrd.
    Kernel,
    /// The machine fetched its Ignition config.
    Config,
    /// Ignition's stage `fetch-offline`.
    FetchOffline,
    /// Ignition's stage `fetch`.
    Fetch,
    /// Ignition's stage `kargs`.
    Kargs,
    /// Ignition's stage `disks`.
    Disks,
    /// Ignition's stage `mount`.
    Mount,
    /// Ignition's stage `files`.
    Files,
    /// Ignition's stage `umount`.
    Umount,
    /// The machine reported that it is installed.
    Installed,
    /// The server made the machine boot from its disk.
    LocalDisk,
    Kubelet,
    Ready,
}

impl Stage {
    /// All stages, in boot order.
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

    /// Returns the name in reports.
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

    /// Returns the stage with a name that Ignition or a template reports.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Returns the name for display.
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

    /// Returns `true` for stages that a machine may report. The server observes the others.
    pub(crate) fn is_reported(self) -> bool {
        self >= Self::FetchOffline && self != Self::LocalDisk && self != Self::Ready
    }
}

/// The outcome of a stage, or its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Started,
    Succeeded,
    Failed,
}

impl Outcome {
    /// Returns the outcome with a name that a machine reports.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "started" => Some(Self::Started),
            "succeeded" => Some(Self::Succeeded),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Returns the name in reports and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}
