//! The error of starting the server.

use std::{io, net::SocketAddr, path::PathBuf};

/// The error of starting the kubelet's server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listen on {address}: {source}; is another kubelet running?")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("create the kubelet's serving certificate: {0}")]
    Certificate(#[from] pki::Error),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error("the client CA {}: {source}", path.display())]
    ClientCa { path: PathBuf, source: pki::ClientError },
}
