//! The error of the configuration and the flags.

use std::path::PathBuf;

/// An error in the configuration or in a flag.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading the configuration {}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("{field}: {value:?} is not valid; it has to be {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Features(#[from] api_config::FeatureGateError),
}
