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

/// As much of a plugin's words as is told.
pub fn shortened(message: &str) -> &str {
    message.get(..message.floor_char_boundary(MOST)).unwrap_or(message)
}

impl Error {
    /// What a status says; one that was made on this side says that nobody answered.
    pub fn of(status: &Status) -> Self {
        // A status with a cause was made on this side: the connection broke, and nobody knows how far the driver came.
        let is_own = std::error::Error::source(status).is_some() && status.code() == Code::Unknown;
        let code = if is_own { Code::Unavailable } else { status.code() };
        Self { code, message: shortened(status.message()).to_owned() }
    }

    pub(crate) fn no_answer() -> Self {
        Self { code: Code::DeadlineExceeded, message: "context deadline exceeded".to_owned() }
    }

    /// The code's name as Go writes it.
    pub fn code_name(&self) -> String {
        match self.code {
            Code::Cancelled => "Canceled".to_owned(),
            code => format!("{code:?}"),
        }
    }

    /// Whether nobody has answered, as far as is known because nobody is there.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
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
