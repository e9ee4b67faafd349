//! The error type of configs.

/// The reasons to reject a config. A machine with such a config stops booting.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConfigError {
    #[error("the config is empty")]
    Empty,
    #[error("not JSON: {0}")]
    Json(String),
    #[error("a cloud-config or a script, not an Ignition config")]
    CloudConfig,
    #[error("ignition.version is required")]
    NoVersion,
    #[error(
        "ignition.version {0:?} is not one of 2.0.0 to 2.4.0, 3.0.0 to 3.6.0 or 3.7.0-experimental"
    )]
    Version(String),
    #[error("$.{path}: {reason}")]
    Invalid { path: String, reason: String },
    #[error("$: {0}")]
    Shape(String),
}

impl ConfigError {
    /// Returns the error for a value that is not allowed.
    pub(crate) fn invalid(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), reason: reason.into() }
    }
}
