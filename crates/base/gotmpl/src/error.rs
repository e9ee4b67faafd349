//! The errors of templates, with Go's messages.

/// The phase in which a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is not a valid template.
    Parse,
    /// The data does not fit, or a function failed.
    Execute,
    /// A limit of [`Limits`](crate::Limits) was exceeded.
    Limit,
}

/// An error with Go's message, which names the template and the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The phase.
    pub kind: ErrorKind,
    /// The line of the template, counted from 1.
    pub line: usize,
    /// The message.
    pub message: String,
}

/// The message of an invalid token or of a failed function. [`Error`] adds the template and the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Message(String);

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
