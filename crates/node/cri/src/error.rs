//! The crate's error.

use std::time::Duration;

use tonic::Code;

/// An error response of the runtime, or no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("container runtime: {operation} {subject}: {message}")]
    Refused { operation: &'static str, subject: String, code: Code, message: String },
    #[error(
        "container runtime: {operation} {subject}: no answer on {socket} within {}s; is the runtime running?",
        waited.as_secs()
    )]
    NoAnswer { operation: &'static str, subject: String, socket: String, waited: Duration },
    #[error("container runtime: the answer to {operation} {subject} lacks {field}")]
    Incomplete { operation: &'static str, subject: String, field: &'static str },
}

impl Error {
    /// Returns `true` if the runtime does not know the ID.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: Code::NotFound, .. })
    }

    /// Returns `true` if the runtime does not have the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { code: Code::Unimplemented, .. })
    }

    /// Returns the runtime's own message, as Pod statuses and Events contain it.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}
