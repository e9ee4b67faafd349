//! The flags of the proxy between the API servers of a cluster.

use std::{net::IpAddr, path::PathBuf};

use api_config::FeatureGates;

use crate::config::{PEER_GATE, PeerOptions};

/// Flags of the proxy between the API servers of a cluster
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct PeerFlags {
    /// Authorities that verify the other API servers; requests that only they can answer are forwarded
    #[arg(long, conflicts_with = "store_dir")]
    pub peer_ca_file: Option<PathBuf>,
    /// The address at which the other API servers reach this one [default: that of --advertise-address]
    #[arg(long)]
    pub peer_advertise_ip: Option<IpAddr>,
    /// The port at which the other API servers reach this one [default: that of --secure-port]
    #[arg(long)]
    pub peer_advertise_port: Option<u16>,
}

/// The error for a flag without the feature gate, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("--{0} requires UnknownVersionInteroperabilityProxy feature to be turned on")]
pub struct PeerFlagError(&'static str);

impl PeerFlags {
    /// Converts the flags.
    pub(super) fn options(&self, features: &FeatureGates) -> Result<PeerOptions, PeerFlagError> {
        let given = [
            ("peer-ca-file", self.peer_ca_file.is_some()),
            ("peer-advertise-ip", self.peer_advertise_ip.is_some()),
            ("peer-advertise-port", self.peer_advertise_port.is_some()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given)
            && !features.is_enabled(PEER_GATE)
        {
            return Err(PeerFlagError(flag));
        }
        Ok(PeerOptions {
            ca: self.peer_ca_file.clone(),
            advertise_ip: self.peer_advertise_ip,
            advertise_port: self.peer_advertise_port,
        })
    }
}
