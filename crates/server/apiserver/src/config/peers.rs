//! The settings of the proxy between the API servers of a cluster.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use super::Config;
use crate::peers;

/// The settings of the proxy between the API servers of a cluster (`--peer-*`).
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    /// The file with the authorities of the other servers' certificates. Without it no request is forwarded.
    pub ca: Option<PathBuf>,
    /// The address at which the other servers reach this one; by default the advertised address.
    pub advertise_ip: Option<IpAddr>,
    /// The port at which the other servers reach this one; by default that of the listener.
    pub advertise_port: Option<u16>,
}

impl Config {
    /// Returns the file with the authorities of the other API servers, or `None` if no request is forwarded to them.
    pub(crate) fn peer_authorities(&self) -> Option<&Path> {
        self.peers.ca.as_deref().filter(|_| self.features.is_enabled(peers::GATE))
    }

    /// Returns the address at which the other API servers reach this one, or `None` if the feature is off.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        let ip = self.peers.advertise_ip.unwrap_or(self.advertise);
        let port = self.peers.advertise_port.unwrap_or(self.bind.port());
        self.features.is_enabled(peers::GATE).then(|| SocketAddr::new(ip, port))
    }
}
