use serde::{Deserialize, Serialize};

/// What the API server answered instead of success: the part of a `Status` that callers act on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<StatusDetails>,
}

/// What a refusal is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub causes: Vec<StatusCause>,
    /// When to ask again, as the server wishes.
    pub retry_after_seconds: Option<u64>,
}

/// One thing that is wrong, in one field if it is in one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct StatusCause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server understood the request and refused it.
    #[error("{method} {path}: {} ({})", .status.message, .status.reason)]
    Api { method: http::Method, path: String, status: Box<Status> },
    /// No answer: whether a write happened is unknown.
    #[error("{operation} {target}: {source}")]
    Transport {
        operation: &'static str,
        target: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("decoding the answer to {path}: {source}; does the server speak Kubernetes v1.36?")]
    Decode { path: String, source: serde_json::Error },
    #[error("encoding a request for {path}: {source}")]
    Encode { path: String, source: serde_json::Error },
    #[error("the answer to {path} is larger than {limit} bytes")]
    TooLarge { path: String, limit: usize },
}

impl Error {
    /// The innermost cause: of a connection that failed, what the system or TLS said.
    pub fn cause(&self) -> &(dyn std::error::Error + 'static) {
        let mut cause: &(dyn std::error::Error + 'static) = self;
        while let Some(next) = cause.source() {
            cause = next;
        }
        cause
    }

    /// The refusal, if the server answered with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The HTTP code of a refusal.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|s| s.code)
    }

    fn is(&self, code: u16, reason: &str) -> bool {
        self.status().is_some_and(|s| s.code == code && (reason.is_empty() || s.reason == reason))
    }

    /// The object, or the resource itself, is not there.
    pub fn is_not_found(&self) -> bool {
        self.is(404, "")
    }

    /// The object has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.is(409, "Conflict")
    }

    /// An object of the name is there.
    pub fn is_already_exists(&self) -> bool {
        self.is(409, "AlreadyExists")
    }

    /// This user may not.
    pub fn is_forbidden(&self) -> bool {
        self.is(403, "")
    }

    /// The object breaks a rule of its kind.
    pub fn is_invalid(&self) -> bool {
        self.is(422, "")
    }

    /// Flow control, or an eviction's budget, says later.
    pub fn is_too_many_requests(&self) -> bool {
        self.is(429, "")
    }

    /// The resource version asked for is too old: list again.
    pub fn is_gone(&self) -> bool {
        self.is(410, "")
    }
}

/// For what may have gone in the meantime: an object to read, change or delete that is not there is no failure.
pub trait IfThere<T> {
    /// `None` where the server answered that there is no such object.
    fn if_there(self) -> Result<Option<T>, Error>;
}

impl<T> IfThere<T> for Result<T, Error> {
    fn if_there(self) -> Result<Option<T>, Error> {
        match self {
            Ok(there) => Ok(Some(there)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> Result<u8, Error> {
        let status = Box::new(Status { code, ..Status::default() });
        Err(Error::Api { method: http::Method::GET, path: "/".to_owned(), status })
    }

    #[test]
    fn only_what_is_not_found_is_no_failure() {
        assert_eq!(Ok::<_, Error>(7).if_there().unwrap(), Some(7));
        assert_eq!(refused(404).if_there().unwrap(), None);
        for code in [403, 409, 410, 500] {
            assert_eq!(refused(code).if_there().unwrap_err().code(), Some(code));
        }
    }
}
