//! The reasons why a plugin's configuration is invalid.

use api_config::GoDuration;
use api_meta::{FieldError, SelectorError};
use serde_json::Value;

/// The reason why a plugin's configuration is invalid, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("no config specified")]
    Missing,
    #[error(transparent)]
    Decode(#[from] api_config::Error),
    #[error("{}", api_meta::aggregate(.0))]
    Invalid(Vec<FieldError>),
    #[error("valid value is between {least} and {most}, got {got}")]
    Duration { least: GoDuration, most: GoDuration, got: GoDuration },
    #[error("{namespace}: {source}")]
    NodeSelector { namespace: String, source: SelectorError },
    #[error("invalid config: {0} is not a toleration")]
    NotToleration(Value),
}
