//! The failures of requests to backends, in the words of upstream's client.

use std::{io, net::IpAddr, time::Duration};

/// The reason why a request to a backend failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendError {
    #[error(transparent)]
    Url(#[from] http::uri::InvalidUri),
    #[error("the URL is not an https URL")]
    NotHttps,
    #[error("the URL has no host")]
    NoHost,
    #[error("service \"{0}\" not found")]
    NoService(String),
    #[error("no service port {port} found for service \"{service}\"")]
    NoPort { service: String, port: u16 },
    #[error("no endpoints available for service \"{0}\"")]
    NoEndpoints(String),
    #[error("the address {0} is not allowed")]
    ForbiddenAddress(IpAddr),
    /// The host of an ExternalName Service does not resolve to an allowed address.
    #[error("{message}")]
    Lookup { message: String },
    #[error("reading {path}, as no caBundle is given: {source}")]
    SystemAuthorities { path: &'static str, source: io::Error },
    #[error("reading the caBundle: {0}")]
    Bundle(#[from] base64::DecodeError),
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Header(#[from] http::header::InvalidHeaderValue),
    /// The connection failed. The message is the innermost cause.
    #[error("{cause}")]
    Connection { cause: String },
    #[error("the answer is longer than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the issuer answered with the status code {0}")]
    IssuerStatus(u16),
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("context deadline exceeded")]
    Deadline,
}

impl BackendError {
    /// Returns the error for a response whose body cannot be read.
    pub(super) fn body(error: &client::Error) -> Self {
        match error {
            client::Error::TooLarge { limit, .. } => Self::TooLarge { limit: *limit },
            broken => Self::Connection { cause: broken.cause().to_string() },
        }
    }
}

/// The failure of a GET request, with its URL.
#[derive(Debug, thiserror::Error)]
#[error("Get \"{url}\": {source}")]
pub(crate) struct GetError {
    pub(super) url: String,
    pub(super) source: BackendError,
}
