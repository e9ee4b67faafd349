//! The errors of a store.

/// An error of reading or writing a state store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "state store {url:?}: {scheme} is not built yet; name file:///path, s3://bucket/path or gs://bucket/path"
    )]
    Scheme { url: String, scheme: String },
    #[error(
        "state store {url:?}: {reason}; name one as file:///path, s3://bucket/path or gs://bucket/path"
    )]
    Url { url: String, reason: &'static str },
    #[error("object {name:?} of the state store: {reason}")]
    Name { name: String, reason: &'static str },
    #[error(
        "writing {name:?} to the state store: another process has changed it since it was read; read it again and \
         repeat the command"
    )]
    Conflict { name: String },
    #[error(
        "the state store's lock {name:?} is held by {holder} until {until}; wait until then, or ask the holder"
    )]
    Locked { name: String, holder: String, until: String },
    #[error(
        "reading {name:?} of the state store: it has more than {most} {unit}; another program wrote it"
    )]
    TooMuch { name: String, most: usize, unit: &'static str },
    #[error("preparing a request to the state store's server {address}: {cause}")]
    Server { address: String, cause: String },
    #[error("the state store: {0}")]
    Credentials(#[from] aws::Error),
    #[error("{operation} {name:?} of the state store: {source}")]
    Sent { operation: &'static str, name: String, source: client::Error },
    #[error(
        "{operation} {name:?} of the state store: {server} did not answer in time; check whether it can be reached"
    )]
    Late { operation: &'static str, name: String, server: String },
    #[error("{operation} {name:?} of the state store: the answer is {status}: {cause}")]
    Response { operation: &'static str, name: String, status: String, cause: String },
    #[error("{operation} {name:?} of the state store: {source}")]
    Io { operation: &'static str, name: String, source: std::io::Error },
}

impl Error {
    pub(crate) fn io(
        operation: &'static str,
        name: &str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let name = name.to_owned();
        move |source| Self::Io { operation, name, source }
    }

    pub(crate) fn sys(
        operation: &'static str,
        name: &str,
    ) -> impl FnOnce(sys::Error) -> Self + use<> {
        let failed = Self::io(operation, name);
        move |error| failed(error.source)
    }

    /// Reports whether a retry may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Sent { .. } | Self::Late { .. } => true,
            Self::Response { status, .. } => status == "nonsense",
            _ => false,
        }
    }

    /// Reports whether the object does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}
