//! `windlass metal power`: presses a machine's power button through its management controller (BMC).
//!
//! Controllers are named in the store, `bmc/MAC.json` with hyphens in the MAC address: `{"type": "ipmi" or
//! "redfish", "address": "…", "user": "…", "password": "…"}`; a Redfish address is a URL. `"uefi": true` has the next boot
//! that is chosen be one of UEFI.

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
    /// What to do
    pub action: Action,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
}

/// What can be done with a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// Say whether it is on
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

/// How a machine's controller is reached.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bmc {
    #[serde(rename = "type")]
    pub kind: Kind,
    pub address: String,
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub password: String,
    /// The next boot is to be by UEFI: without it IPMI means BIOS, and Redfish what the machine is set to.
    #[serde(default)]
    pub uefi: bool,
    /// Redfish: take any certificate.
    #[serde(default)]
    pub insecure: bool,
    /// Redfish: the CA of its certificate, in PEM.
    #[serde(default)]
    pub ca: Option<String>,
    /// Redfish: the system's path, where the controller has several.
    #[serde(default)]
    pub system: Option<String>,
}

/// The protocol that the controller speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Ipmi,
    Redfish,
}

/// Why the button was not pressed, or nobody knows whether it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is no MAC address")]
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

/// What a controller can be asked, whatever it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    On,
    Off,
    Shutdown,
    Reset,
    Cycle,
}

/// What the next boot is to be from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Network,
    Disk,
}

/// Does it, and prints what the controller says of the machine's power.
pub async fn run(args: Args) -> Result<(), Error> {
    let bmc = bmc(&args.data_path, &args.machine)?;
    let address = bmc.address.clone();
    let said = match bmc.kind {
        Kind::Ipmi => {
            let failed = |source| Error::Ipmi { address: address.clone(), source };
            let mut session = ipmi::Session::open(&bmc).await.map_err(failed)?;
            let done = ipmi::perform(&mut session, args.action, bmc.uefi).await;
            // A controller has room for a handful of sessions.
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

/// What an action says when it is done.
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
