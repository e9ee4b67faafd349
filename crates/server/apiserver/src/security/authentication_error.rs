//! The reasons why an authentication configuration cannot be used.

use api_meta::{ErrorList, FieldError, aggregate};

/// The reason why an authentication configuration cannot be used, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    #[error("failed to load authentication configuration from file {path:?}: {source}")]
    File { path: String, source: Box<FileError> },
    #[error("invalid authentication configuration: {}", aggregate(.0))]
    Invalid(ErrorList),
    #[error("oidc: unsupported signing alg: {0:?}")]
    SigningAlgorithm(String),
    #[error(
        "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
         authentication configuration file"
    )]
    AnonymousTwice,
}

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("empty config data")]
    Empty,
    #[error(transparent)]
    Parse(#[from] api_config::Error),
    #[error("{}", aggregate(.0))]
    Invalid(Vec<FieldError>),
}
