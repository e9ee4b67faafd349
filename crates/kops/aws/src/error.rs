//! The errors of calls.

/// An error of a call to AWS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "finding credentials for AWS: {cause}; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials { cause: String },
    #[error("{variable}={value:?} {reason}")]
    InvalidSetting { variable: &'static str, value: String, reason: &'static str },
    #[error("calling {operation} at {server}: {cause}; check whether it can be reached")]
    Server { operation: String, server: String, cause: String },
    #[error("calling {operation}: the answer is {status}, {code}: {message}")]
    Refused { operation: String, status: u16, code: String, message: String },
    #[error("calling {operation}: the answer cannot be used: {cause}")]
    InvalidAnswer { operation: String, cause: &'static str },
    #[error(
        "{operation} with {parameter:?} is not in the table of operations: this is a bug; please report it"
    )]
    Unknown { operation: String, parameter: String },
}

impl Error {
    /// Returns AWS' error code; empty for other errors.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            _ => "",
        }
    }

    /// Reports whether the resource does not exist.
    pub fn is_absent(&self) -> bool {
        let code = self.code();
        ["NotFound", "NoSuchEntity", "NonExistentQueue", "QueueDoesNotExist"]
            .iter()
            .any(|word| code.contains(word))
            || code == "ResourceNotFoundException"
            || self.is_absent_hook()
    }

    /// Reports whether a lifecycle hook does not exist, for which AWS has no code of its own.
    fn is_absent_hook(&self) -> bool {
        let Self::Refused { operation, code, message, .. } = self else { return false };
        operation == "DeleteLifecycleHook"
            && code == "ValidationError"
            && message.to_lowercase().contains("no lifecycle hook found")
    }

    /// Reports whether AWS rejected the call without effect, because there are too many calls.
    pub(crate) fn is_throttled(&self) -> bool {
        let code = self.code();
        matches!(self, Self::Refused { status: 429, .. })
            || [
                "Throttl",
                "RequestLimitExceeded",
                "TooManyRequests",
                "SlowDown",
                "PriorRequestNotComplete",
            ]
            .iter()
            .any(|word| code.contains(word))
    }

    /// Reports whether the outcome is unknown, and a retry may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Server { .. } | Self::Refused { status: 408 | 500.., .. })
    }
}
