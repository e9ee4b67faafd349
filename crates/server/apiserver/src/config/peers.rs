//! The settings of the proxy between the API servers of a cluster.

use std::{net::IpAddr, path::PathBuf};

/// The feature gate of the proxy between API servers.
pub(crate) const PEER_GATE: &str = "UnknownVersionInteroperabilityProxy";

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
