//! The error of a request and the `Status` that a server returns.

use serde::{Deserialize, Serialize};

/// The fields of an error response's `Status` that callers act on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: String,
    /// The message for humans.
    pub message: String,
    /// The object and the causes of the error.
    pub details: Option<StatusDetails>,
}

/// The details of an error `Status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// The name of the object.
    pub name: String,
    /// The API group of the object.
    pub group: String,
    /// The kind of the object.
    pub kind: String,
    /// The individual errors, such as one for each invalid field.
    pub causes: Vec<StatusCause>,
    /// The delay before the next attempt that the server requests, in seconds.
    pub retry_after_seconds: Option<u64>,
}

/// An error of a request, and its field if it concerns one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct StatusCause {
    /// The machine-readable reason, such as `FieldValueInvalid`.
    pub reason: String,
    /// The message for humans.
    pub message: String,
    /// The path of the field; empty if the error concerns no field.
    pub field: String,
}

/// The error of a request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server rejected the request.
    #[error("{method} {path}: {} ({})", .status.message, .status.reason)]
    Api { method: http::Method, path: String, status: Box<Status> },
    /// The server did not respond. A write may or may not have happened.
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
    /// Returns the innermost cause. For a failed connection, this is the error of the operating system or of TLS.
    pub fn cause(&self) -> &(dyn std::error::Error + 'static) {
        let mut cause: &(dyn std::error::Error + 'static) = self;
        while let Some(next) = cause.source() {
            cause = next;
        }
        cause
    }

    /// Returns the server's `Status` if it rejected the request.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Returns the server's message if it rejected the request with one, and otherwise the whole error.
    pub fn server_message(&self) -> String {
        match self.status() {
            Some(status) if !status.message.is_empty() => status.message.clone(),
            _ => self.to_string(),
        }
    }

    /// Returns the HTTP status code if the server rejected the request.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|s| s.code)
    }

    fn is(&self, code: u16, reason: &str) -> bool {
        self.status().is_some_and(|s| s.code == code && (reason.is_empty() || s.reason == reason))
    }

    /// Returns `true` if the object or the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is(404, "")
    }

    /// Returns `true` if the object has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.is(409, "Conflict")
    }

    /// Returns `true` if an object of this name exists already.
    pub fn is_already_exists(&self) -> bool {
        self.is(409, "AlreadyExists")
    }

    /// Returns `true` if the user is not authorized.
    pub fn is_forbidden(&self) -> bool {
        self.is(403, "")
    }

    /// Returns `true` if the object failed validation.
    pub fn is_invalid(&self) -> bool {
        self.is(422, "")
    }

    /// Returns `true` if flow control or a PodDisruptionBudget asks the client to retry later.
    pub fn is_too_many_requests(&self) -> bool {
        self.is(429, "")
    }

    /// Returns `true` if the requested resourceVersion is too old. The client must list again.
    pub fn is_gone(&self) -> bool {
        self.is(410, "")
    }
}

/// Turns `NotFound` errors into `None`, for objects that may have been deleted in the meantime.
pub trait NotFoundExt<T> {
    /// Returns `None` if the server answered that the object does not exist.
    fn or_none(self) -> Result<Option<T>, Error>;
}

impl<T> NotFoundExt<T> for Result<T, Error> {
    fn or_none(self) -> Result<Option<T>, Error> {
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

    fn rejected(code: u16) -> Result<u8, Error> {
        let status = Box::new(Status { code, ..Status::default() });
        Err(Error::Api { method: http::Method::GET, path: "/".to_owned(), status })
    }

    #[test]
    fn maps_only_not_found_to_none() {
        assert_eq!(Ok::<_, Error>(7).or_none().unwrap(), Some(7));
        assert_eq!(rejected(404).or_none().unwrap(), None);
        for code in [403, 409, 410, 500] {
            assert_eq!(rejected(code).or_none().unwrap_err().code(), Some(code));
        }
    }
}
