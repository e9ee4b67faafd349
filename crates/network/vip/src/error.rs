//! The crate's error.

use std::net::IpAddr;

/// An error that prevents this machine from holding the address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] netlink::Error),
    #[error("there is no interface {0:?}; see ip link")]
    NoInterface(String),
    #[error("the API server's URL contains no address; name an interface with --interface")]
    NoPlace,
    #[error("no interface has the address {0}; name one with --interface")]
    Nowhere(IpAddr),
    #[error(
        "{0:?} is not the URL of an API server by its address; name an interface with --interface"
    )]
    Server(String),
    #[error("reading {path}: {cause}")]
    Kubeconfig { path: String, cause: String },
    #[error("announcing {address} on {interface}: {source}")]
    Announce { address: IpAddr, interface: String, source: std::io::Error },
}
