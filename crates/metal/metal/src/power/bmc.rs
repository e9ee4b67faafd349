//! The connection to a controller, as the store describes it.

use serde::Deserialize;

/// The connection to a machine's controller.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bmc {
    /// The protocol.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The address: a host with an optional port for IPMI, a URL for Redfish.
    pub address: String,
    /// The user name.
    #[serde(default)]
    pub user: String,
    /// The password.
    #[serde(default)]
    pub password: String,
    /// `true` if a selected next boot uses UEFI. Otherwise IPMI selects BIOS, and Redfish keeps the machine's setting.
    #[serde(default)]
    pub uefi: bool,
    /// Redfish: `true` to accept any certificate.
    #[serde(default)]
    pub insecure: bool,
    /// Redfish: the CA of the certificate, in PEM.
    #[serde(default)]
    pub ca: Option<String>,
    /// Redfish: the path of the system, if the controller has several.
    #[serde(default)]
    pub system: Option<String>,
}

/// The protocol of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Ipmi,
    Redfish,
}
