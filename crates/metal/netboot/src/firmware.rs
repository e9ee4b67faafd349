//! Detects the firmware that a DHCP request describes.

use dhcproto::v4::{DhcpOption, Message, OptionCode};

/// The firmware or boot loader that sent a request, by architecture (option 93, RFC 4578) and classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    Bios,
    UefiIa32,
    UefiX64,
    UefiArm64,
    /// UEFI HTTP boot, which fetches a URL and does not use TFTP.
    HttpX64,
    HttpArm64,
    /// iPXE, on any firmware.
    Ipxe,
}

impl Firmware {
    /// Detects the firmware; `None` for a client that does not boot from the network or has an unsupported
    /// architecture.
    pub fn of(request: &Message) -> Option<Self> {
        let class = match request.opts().get(OptionCode::UserClass) {
            Some(DhcpOption::UserClass(class)) => class.as_slice(),
            _ => &[],
        };
        // RFC 3004 puts a length byte first; iPXE does not.
        if class == b"iPXE" || class == b"\x04iPXE" {
            return Some(Self::Ipxe);
        }
        let Some(DhcpOption::ClassIdentifier(vendor)) =
            request.opts().get(OptionCode::ClassIdentifier)
        else {
            return None;
        };
        let http = vendor.starts_with(b"HTTPClient");
        if !http && !vendor.starts_with(b"PXEClient") {
            return None;
        }
        let architecture = match request.opts().get(OptionCode::ClientSystemArchitecture) {
            Some(DhcpOption::ClientSystemArchitecture(architecture)) => architecture.0,
            // Firmware older than RFC 4578.
            _ => 0,
        };
        match (architecture, http) {
            (0, false) => Some(Self::Bios),
            (6, false) => Some(Self::UefiIa32),
            // RFC 4578 defines 7 as EFI byte code, but firmware sends it for x64.
            (7 | 9, false) => Some(Self::UefiX64),
            (11, false) => Some(Self::UefiArm64),
            (16, _) => Some(Self::HttpX64),
            (19, _) => Some(Self::HttpArm64),
            _ => None,
        }
    }

    /// Returns the name shown in the inventory of machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bios => "BIOS",
            Self::UefiIa32 => "UEFI ia32",
            Self::UefiX64 => "UEFI x64",
            Self::UefiArm64 => "UEFI arm64",
            Self::HttpX64 => "UEFI HTTP x64",
            Self::HttpArm64 => "UEFI HTTP arm64",
            Self::Ipxe => "iPXE",
        }
    }

    pub(crate) fn is_http(self) -> bool {
        matches!(self, Self::HttpX64 | Self::HttpArm64)
    }
}
