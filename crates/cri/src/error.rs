use std::time::Duration;

use tonic::Code;

/// What the runtime said, or that it said nothing.
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
    /// The runtime does not know the ID: what was asked about is gone.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: Code::NotFound, .. })
    }

    /// The runtime's own words, which is what Pod statuses and Events carry.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}
