//! The crate's error, with gRPC's codes.

use tonic::{Code, Status};

/// An error response of the driver, or no response. Formatted like Go's gRPC errors, which users search for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct Error {
    code: Code,
    message: String,
}

/// The maximum length in bytes of a driver's message, because it is copied to Events and statuses.
const MAX_MESSAGE_LENGTH: usize = 2048;

/// Returns a plugin's message, shortened to the maximum length.
pub fn shorten(message: &str) -> &str {
    message.get(..message.floor_char_boundary(MAX_MESSAGE_LENGTH)).unwrap_or(message)
}

impl Error {
    /// Converts a gRPC status. A status that was created on this side becomes `Unavailable`.
    pub fn of(status: &Status) -> Self {
        // A status with a source was created on this side: the connection broke, and the call's progress is unknown.
        let is_own = std::error::Error::source(status).is_some() && status.code() == Code::Unknown;
        let code = if is_own { Code::Unavailable } else { status.code() };
        Self { code, message: shorten(status.message()).to_owned() }
    }

    pub(crate) fn no_answer() -> Self {
        Self { code: Code::DeadlineExceeded, message: "context deadline exceeded".to_owned() }
    }

    /// Returns the code's name as Go formats it.
    pub fn code_name(&self) -> String {
        match self.code {
            Code::Cancelled => "Canceled".to_owned(),
            code => format!("{code:?}"),
        }
    }

    /// Returns `true` if there was no response, probably because the driver does not run.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// Returns `true` if the driver has ended the operation. After any other error the operation may continue, so its
    /// volume must not be touched.
    pub fn is_final(&self) -> bool {
        let open = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ];
        !open.contains(&self.code)
    }

    /// Returns `true` if the driver cannot expand the volume to the requested size, however often it is called.
    pub fn is_infeasible(&self) -> bool {
        [Code::InvalidArgument, Code::OutOfRange, Code::NotFound].contains(&self.code)
    }
}
