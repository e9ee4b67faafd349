//! The errors of the dashboard: of its start, and of a page.

use std::net::SocketAddr;

use http::StatusCode;

/// An error that prevents the dashboard's start.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// The page would be reachable from other machines.
    #[error(
        "--listen {0} is not a loopback address, and the page has no TLS; use 127.0.0.1 or [::1], or give \
         --tls-cert-file and --tls-private-key-file, with which users log in by their tokens"
    )]
    NotLoopback(SocketAddr),
    /// The certificate or its key cannot be used.
    #[error("serving over TLS: {0}")]
    Tls(#[from] serve::TlsError),
    /// The address cannot be used.
    #[error("listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// The address of `--listen`.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
}

/// The error of one page, or of a part of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error("there is no such page")]
    NotFound,
    #[error("this page is for users who may get /metrics, because it shows this machine")]
    Machine,
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Timeline(#[from] telemetry::timeline::LoadError),
    #[error("the API server has not answered for {} seconds", .0.as_secs())]
    Timeout(std::time::Duration),
}

impl PageError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Machine => StatusCode::FORBIDDEN,
            Self::Api(error) => error
                .code()
                .and_then(|code| StatusCode::from_u16(code).ok())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            Self::Timeline(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the message for people: the API server's own if it has answered.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Api(error) => match error.server_message() {
                text if text.is_empty() => error.to_string(),
                text => text,
            },
            other => other.to_string(),
        }
    }
}
