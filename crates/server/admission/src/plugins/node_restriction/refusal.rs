//! The reason why a node's request is rejected.

use api_meta::Status;

/// The reason why a node's request is rejected: a message for a Forbidden status, or a complete status.
pub(super) enum Refusal {
    Cause(String),
    Status(Box<Status>),
}

impl From<String> for Refusal {
    fn from(cause: String) -> Self {
        Self::Cause(cause)
    }
}

impl From<&str> for Refusal {
    fn from(cause: &str) -> Self {
        Self::Cause(cause.to_owned())
    }
}
