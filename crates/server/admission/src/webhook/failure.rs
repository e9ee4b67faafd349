//! The reasons why a webhook did not admit a request.

use api_meta::Status;

/// The reason why a webhook did not admit a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The call was not made, failed, or returned an invalid answer. `code` is the HTTP status in metrics.
    Call { cause: String, code: u16 },
    /// The webhook denied the request.
    Rejection(Box<Status>),
    /// The server cannot do what the webhook requires.
    Server(Box<Status>),
}

impl Failure {
    /// Builds the failure of a call.
    pub fn call(cause: impl Into<String>, code: u16) -> Self {
        Self::Call { cause: cause.into(), code }
    }

    /// Returns the metrics labels: error type and HTTP status.
    pub fn kind(&self) -> (&'static str, u16) {
        match self {
            Self::Call { code, .. } => ("calling_webhook_error", *code),
            Self::Rejection(status) => ("no_error", status.code),
            Self::Server(_) => ("apiserver_internal_error", 0),
        }
    }
}
