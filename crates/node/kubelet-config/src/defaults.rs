//! Defaults of fields whose zero value stands for a default.

use std::{path::PathBuf, time::Duration};

use api_config::GoDuration;

/// Returns a duration, or the default in seconds instead of zero.
pub(crate) fn duration_or(value: GoDuration, default: u64) -> Duration {
    if value.is_zero() { Duration::from_secs(default) } else { value.to_std() }
}

/// Returns a text, or the default instead of an empty one.
pub(crate) fn text_or(value: &str, default: &str) -> String {
    if value.is_empty() { default.to_owned() } else { value.to_owned() }
}

/// Returns a path, or `None` for an empty one.
pub(crate) fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}
