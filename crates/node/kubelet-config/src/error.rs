//! The error of the kubelet's flags and configuration.

use std::path::PathBuf;

/// An error in the kubelet's flags or configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the kubelet's configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the kubelet's configuration {}: {source}", path.display())]
    Decode { path: PathBuf, source: api_config::Error },
    #[error("the kubelet's configuration: {field}: {message}")]
    Invalid { field: &'static str, message: String },
    #[error(transparent)]
    FeatureGates(#[from] api_config::FeatureGateError),
    #[error("--{flag}={value}: it must be {expected}")]
    Flag { flag: &'static str, value: String, expected: &'static str },
}

/// Returns the error of a field's value.
pub(crate) fn invalid(field: &'static str, message: impl ToString) -> ConfigError {
    ConfigError::Invalid { field, message: message.to_string() }
}
