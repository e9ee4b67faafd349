//! Rejections of requests.

use http::StatusCode;

use crate::error::Error;

/// A rejection: the status, S3's error code and the message.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) StatusCode, pub(super) &'static str, pub(super) String);

/// Returns a rejection as an error.
pub(super) fn refuse<T>(
    status: StatusCode,
    code: &'static str,
    why: impl Into<String>,
) -> Result<T, Refusal> {
    Err(Refusal(status, code, why.into()))
}

/// Returns the rejection of a request without rights.
pub(super) fn denied<T>() -> Result<T, Refusal> {
    refuse(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied")
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let failed = "At least one of the pre-conditions you specified did not hold";
        match error {
            Error::Conflict { .. } => {
                Self(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", failed.to_owned())
            }
            Error::Name { .. } => {
                Self(StatusCode::BAD_REQUEST, "InvalidArgument", error.to_string())
            }
            error => Self::failed(&error),
        }
    }
}

impl Refusal {
    /// Logs an internal error, and returns its rejection, which does not reveal the store's location.
    pub(super) fn failed(error: &dyn std::fmt::Display) -> Self {
        tracing::warn!(%error, "serving the store");
        let message = "We encountered an internal error. Please try again.";
        Self(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message.to_owned())
    }
}
