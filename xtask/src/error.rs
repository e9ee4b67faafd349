//! The error of a command. Messages name the operation, its subject and the cause.

use std::{borrow::Cow, fmt::Display};

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An operation failed.
    #[error("{operation} {subject}: {source}")]
    Operation { operation: &'static str, subject: String, source: Cause },
    /// Arguments, an input or a result are not as required.
    #[error("{0}")]
    Requirement(Cow<'static, str>),
}

/// The cause of an error.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<&'static str> for Error {
    fn from(message: &'static str) -> Self {
        Self::Requirement(message.into())
    }
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::Requirement(message.into())
    }
}

/// Returns an error with this message.
pub(crate) fn fail<T>(message: impl Into<Error>) -> Result<T> {
    Err(message.into())
}

/// Names the operation of a result and its subject, such as a path.
pub(crate) trait During<T> {
    fn during(self, operation: &'static str, subject: impl Display) -> Result<T>;
}

impl<T, E: Into<Cause>> During<T> for Result<T, E> {
    fn during(self, operation: &'static str, subject: impl Display) -> Result<T> {
        self.map_err(|source| Error::Operation {
            operation,
            subject: subject.to_string(),
            source: source.into(),
        })
    }
}
