//! `windlass metal power`: controls a machine's power through its baseboard management controller (BMC).
//!
//! The store describes controllers in `bmc/MAC.json`, with hyphens in the MAC address: `{"type": "ipmi" or "redfish",
//! "address": "…", "user": "…", "password": "…"}`. A Redfish address is a URL. With `"uefi": true` a selected next boot
//! uses UEFI.

pub mod ipmi;
pub mod redfish;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize;

/// The flags of `metal power`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine's MAC address
    pub machine: String,
    /// The action
    pub action: Action,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
}

/// The actions on a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// Print whether it is on
    Status,
    On,
    /// Cut its power
    Off,
    /// Ask its system to shut down
    Shutdown,
    /// Start it again at once
    Reset,
    /// Cut its power and give it again
    Cycle,
    /// Boot from the network, once, at its next start
    NextBootNetwork,
    /// Boot from its disk, once, at its next start
    NextBootDisk,
    /// Boot from the network now: choose it for once, and reset or power on
    BootNetwork,
}

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

/// The errors of controlling the power. After an error the state may be unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a MAC address")]
    Mac(String),
    #[error("reading {}: {source}; write there how the machine's controller is reached", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("IPMI at {address}: {source}")]
    Ipmi { address: String, source: ipmi::Error },
    #[error("Redfish at {address}: {source}")]
    Redfish { address: String, source: redfish::Error },
}

/// The power operations of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOperation {
    On,
    Off,
    Shutdown,
    Reset,
    Cycle,
}

/// The device of the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Network,
    Disk,
}

/// Performs the action and prints the resulting state.
pub async fn run(args: Args) -> Result<(), Error> {
    let bmc = bmc(&args.data_path, &args.machine)?;
    let address = bmc.address.clone();
    let said = match bmc.kind {
        Kind::Ipmi => {
            let failed = |source| Error::Ipmi { address: address.clone(), source };
            let mut session = ipmi::Session::open(&bmc).await.map_err(failed)?;
            let done = ipmi::perform(&mut session, args.action, bmc.uefi).await;
            // Controllers support only a few sessions.
            session.close().await;
            done.map_err(failed)?
        }
        Kind::Redfish => redfish::perform(&bmc, args.action)
            .await
            .map_err(|source| Error::Redfish { address: address.clone(), source })?,
    };
    println!("{said}");
    Ok(())
}

fn bmc(data: &Path, machine: &str) -> Result<Bmc, Error> {
    let mac =
        netboot::matchbox::parse_mac(machine).ok_or_else(|| Error::Mac(machine.to_owned()))?;
    let path = data.join("bmc").join(format!("{}.json", mac.replace(':', "-")));
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| Error::Parse { path, source }),
        Err(source) => Err(Error::Read { path, source }),
    }
}

/// Returns the message after an action.
fn done(action: Action) -> &'static str {
    match action {
        Action::Status => "asked",
        Action::On => "powered on",
        Action::Off => "powered off",
        Action::Shutdown => "asked to shut down",
        Action::Reset => "reset",
        Action::Cycle => "power-cycled",
        Action::NextBootNetwork => "boots from the network once",
        Action::NextBootDisk => "boots from its disk once",
        Action::BootNetwork => "boots from the network now",
    }
}
