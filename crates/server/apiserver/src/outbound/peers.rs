//! Requests to the peers of this server: the other API servers of the cluster.
//!
//! A peer's address comes from its key in the store, which only API servers write. Before any byte of a request is
//! sent, the peer must prove with its certificate that it is an API server of this cluster. It trusts the user headers
//! of a request because of this server's client certificate.

use std::{net::SocketAddr, sync::Arc};

use api_meta::UserInfo;
use http::HeaderName;

use super::backends::{Credentials, Destination, Location, Trust};
use crate::config::Network;

/// The name that the certificate of every API server contains, as upstream.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// Marks a request that a peer has forwarded. The receiver answers it without forwarding it again.
pub(crate) const PEER_PROXIED: HeaderName = HeaderName::from_static("x-kubernetes-peer-proxied");

/// A peer that can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerReference {
    pub(crate) address: SocketAddr,
    /// The authorities of the peers' certificates, as base64 of PEM.
    pub(crate) authorities: Arc<str>,
}

impl PeerReference {
    /// Returns the peer as the destination of a request.
    pub(crate) fn destination(&self) -> Destination {
        Destination {
            at: Location::Address(self.address),
            name: SERVER_NAME.to_owned(),
            port: self.address.port(),
            trust: Trust {
                bundle: self.authorities.clone(),
                insecure: false,
                credentials: Credentials::Server,
            },
            network: Network::ControlPlane,
        }
    }
}

/// The user of discovery requests. Discovery is readable by every authenticated user, so no privileged user is needed.
pub(crate) fn peer_reader() -> UserInfo {
    UserInfo::new("system:apiserver", &[api_meta::user::GROUP_AUTHENTICATED])
}
