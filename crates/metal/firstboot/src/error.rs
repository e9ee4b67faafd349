//! The error type of this crate.

use std::{io, path::Path};

/// The reasons why a stage fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("config from {origin}: {source}")]
    Config { origin: String, source: ignition::ConfigError },
    #[error("configs refer to one another more than {0} deep; one of them leads back to itself")]
    Deep(usize),
    #[error("platform {0:?} is not known here; use metal, qemu or file")]
    Platform(String),
    #[error("{operation} {path}: {source}")]
    File { operation: &'static str, path: String, source: io::Error },
    #[error("{path}: {reason}")]
    Node { path: String, reason: String },
    #[error("disk {device}: {source}")]
    Partition { device: String, source: ignition::partition::PlanError },
    #[error(
        "{device} did not appear within {seconds} s; check its name and the section that creates it"
    )]
    NoDevice { device: String, seconds: u64 },
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String },
    #[error(transparent)]
    Program(#[from] sys::ProgramError),
    #[error(transparent)]
    Passwd(#[from] ignition::passwd::PasswdError),
    #[error("starting the runtime: {0}")]
    Runtime(io::Error),
}

/// The errors of fetching a resource.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{url:?} is not a URL that can be fetched: {reason}")]
    Url { url: String, reason: String },
    #[error("fetching {url}: {reason}")]
    Transfer { url: String, reason: String },
    #[error("fetching {url}: the server answered {status}{}{text}", if text.is_empty() { "" } else { ": " })]
    Status { url: String, status: u16, text: String },
    #[error("{url} wants the signature of the machine's TPM: {source}")]
    Tpm { url: String, source: Box<Error> },
    #[error("{url}: hash verification failed: wanted {expected}, got {actual}")]
    Hash { url: String, expected: String, actual: String },
    #[error("{url}: {source}")]
    Data { url: String, source: ignition::DataError },
    #[error("{url} needs the network, which is not up yet")]
    NeedsNetwork { url: String },
    #[error("certificates from {origin}: {reason}")]
    Certificates { origin: String, reason: String },
}

impl Error {
    pub(crate) fn file<P: AsRef<Path>>(
        operation: &'static str,
        path: P,
    ) -> impl FnOnce(io::Error) -> Self + use<P> {
        let path = path.as_ref().display().to_string();
        move |source| Self::File { operation, path, source }
    }
}
