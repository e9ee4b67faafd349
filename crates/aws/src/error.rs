/// Why AWS did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "finding credentials for AWS: {cause}; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials { cause: String },
    #[error("{variable}={value:?} {reason}")]
    Place { variable: &'static str, value: String, reason: &'static str },
    #[error("asking {server} for {operation}: {cause}; check whether it can be reached")]
    Server { operation: String, server: String, cause: String },
    #[error("asking for {operation}: the answer is {status}, {code}: {message}")]
    Refused { operation: String, status: u16, code: String, message: String },
    #[error("asking for {operation}: the answer cannot be used: {cause}")]
    Nonsense { operation: String, cause: &'static str },
    #[error(
        "{operation} with {parameter:?} is not in the table of operations: this is a mistake of ours; please report it"
    )]
    Unknown { operation: String, parameter: String },
}

impl Error {
    /// AWS' word for what is wrong, if it is AWS who says so.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            _ => "",
        }
    }

    /// Whether what was asked about is not there.
    pub fn is_absent(&self) -> bool {
        let code = self.code();
        ["NotFound", "NoSuchEntity", "NonExistentQueue", "QueueDoesNotExist"]
            .iter()
            .any(|word| code.contains(word))
            || code == "ResourceNotFoundException"
    }

    /// Whether nothing was done because there are too many calls.
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

    /// Whether it is not known what was done, and it may be otherwise in a while.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Server { .. } | Self::Refused { status: 408 | 500.., .. })
    }
}
