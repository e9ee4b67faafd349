use tonic::{Code, Status};

/// What the driver said, or that it said nothing, in the words of upstream's gRPC, which people search for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct Error {
    code: Code,
    message: String,
}

/// So much of a driver's message is told; it ends up in Events and statuses.
const MOST: usize = 2048;

impl Error {
    pub(crate) fn of(status: &Status) -> Self {
        let mut message = status.message();
        if message.len() > MOST {
            message = message.get(..message.floor_char_boundary(MOST)).unwrap_or_default();
        }
        Self { code: status.code(), message: message.to_owned() }
    }

    pub(crate) fn no_answer() -> Self {
        Self { code: Code::DeadlineExceeded, message: "context deadline exceeded".to_owned() }
    }

    /// Whether the driver has given up what it was asked for. After any other error it may be at it still, so that what
    /// it works on must be left alone.
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
}
