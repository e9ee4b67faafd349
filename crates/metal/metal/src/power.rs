//! `windlass metal power`: controls a machine's power through its baseboard management controller (BMC).
//!
//! The store describes controllers in `bmc/MAC.json`, with hyphens in the MAC address: `{"type": "ipmi" or "redfish",
//! "address": "…", "user": "…", "password": "…"}`. A Redfish address is a URL. With `"uefi": true` a selected next boot
//! uses UEFI.

mod action;
mod bmc;
pub mod ipmi;
pub mod redfish;

use std::path::{Path, PathBuf};

pub use self::{
    action::{Action, Device, PowerOperation},
    bmc::{Bmc, Kind},
};

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

/// Performs the action and prints the resulting state.
pub async fn run(args: Args) -> Result<(), Error> {
    let bmc = read_bmc(&args.data_path, &args.machine)?;
    let address = bmc.address.clone();
    let message = match bmc.kind {
        Kind::Ipmi => {
            let failed = |source| Error::Ipmi { address: address.clone(), source };
            let mut session = ipmi::Session::open(&bmc).await.map_err(failed)?;
            let result = ipmi::perform(&mut session, args.action, bmc.uefi).await;
            // Controllers support only a few sessions.
            session.close().await;
            result.map_err(failed)?
        }
        Kind::Redfish => redfish::perform(&bmc, args.action)
            .await
            .map_err(|source| Error::Redfish { address: address.clone(), source })?,
    };
    println!("{message}");
    Ok(())
}

fn read_bmc(data: &Path, machine: &str) -> Result<Bmc, Error> {
    let mac =
        netboot::matchbox::parse_mac(machine).ok_or_else(|| Error::Mac(machine.to_owned()))?;
    let path = data.join("bmc").join(format!("{}.json", mac.replace(':', "-")));
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| Error::Parse { path, source }),
        Err(source) => Err(Error::Read { path, source }),
    }
}
