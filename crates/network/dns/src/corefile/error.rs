//! The error of a Corefile.

/// An error in a Corefile.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("Corefile line {line}: {reason}")]
pub struct CorefileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub reason: String,
}
