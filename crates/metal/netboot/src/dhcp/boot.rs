//! Selects a machine's boot file by its firmware.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, OptionCode};

use crate::firmware::Firmware;

/// Option 43 for PXE: discovery control, "boot the file named here and look no further".
const PXE_DISCOVERY: [u8; 4] = [6, 1, 8, 255];
/// Option 175 for iPXE: no-pxedhcp, "do not wait for proxy offers".
const IPXE_FEATURES: [u8; 3] = [0xb0, 1, 1];
/// Option 175, which `dhcproto` does not name.
const IPXE: u8 = 175;

/// The boot file of each firmware. `{server}` stands for the server address that the machine reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFiles {
    /// BIOS PXE.
    pub bios: String,
    /// 32-bit x86 UEFI PXE.
    pub uefi_ia32: String,
    /// x86-64 UEFI PXE.
    pub uefi_x64: String,
    /// ARM64 UEFI PXE.
    pub uefi_arm64: String,
    /// x86-64 UEFI HTTP boot.
    pub http_x64: String,
    /// ARM64 UEFI HTTP boot.
    pub http_arm64: String,
    /// The script that iPXE runs.
    pub ipxe: String,
}

impl BootFiles {
    /// Returns the default names, with HTTP served at `port`.
    pub fn with_defaults(port: u16) -> Self {
        let url = |path: &str| format!("http://{{server}}:{port}/{path}");
        Self {
            bios: "undionly.kpxe".into(),
            uefi_ia32: "ipxe-i386.efi".into(),
            uefi_x64: "ipxe.efi".into(),
            uefi_arm64: "ipxe-arm64.efi".into(),
            http_x64: url("assets/ipxe.efi"),
            http_arm64: url("assets/ipxe-arm64.efi"),
            ipxe: url("boot.ipxe"),
        }
    }

    fn file(&self, firmware: Firmware) -> &str {
        match firmware {
            Firmware::Bios => &self.bios,
            Firmware::UefiIa32 => &self.uefi_ia32,
            Firmware::UefiX64 => &self.uefi_x64,
            Firmware::UefiArm64 => &self.uefi_arm64,
            Firmware::HttpX64 => &self.http_x64,
            Firmware::HttpArm64 => &self.http_arm64,
            Firmware::Ipxe => &self.ipxe,
        }
    }
}

/// Adds the boot file options for `firmware` to a reply. `proxy` is `true` if the reply assigns no address.
pub(super) fn add(
    reply: &mut Message,
    files: &BootFiles,
    firmware: Firmware,
    server: Ipv4Addr,
    proxy: bool,
) {
    let file = files.file(firmware).replace("{server}", &server.to_string());
    if file.is_empty() {
        return;
    }
    reply.set_siaddr(server);
    // The field ends with a NUL, and old firmware reads nothing else. A longer name is sent in option 67 only.
    if file.len() < 128 {
        reply.set_fname_str(&file);
    }
    let opts = reply.opts_mut();
    opts.insert(DhcpOption::BootfileName(file.into_bytes()));
    if firmware.is_http() {
        opts.insert(DhcpOption::ClassIdentifier(b"HTTPClient".to_vec()));
        return;
    }
    opts.insert(DhcpOption::TFTPServerName(server.to_string().into_bytes()));
    if proxy {
        // EDK2 takes option 60 in a plain offer for the announcement of a boot server menu.
        opts.insert(DhcpOption::ClassIdentifier(b"PXEClient".to_vec()));
        opts.insert(DhcpOption::VendorExtensions(PXE_DISCOVERY.to_vec()));
    }
    if firmware == Firmware::Ipxe && !proxy {
        opts.insert(DhcpOption::Unknown(dhcproto::v4::UnknownOption::new(
            OptionCode::from(IPXE),
            IPXE_FEATURES.to_vec(),
        )));
    }
}
