//! The error of a component or command.

/// The error of a component or command, which is printed or logged before the process ends.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
