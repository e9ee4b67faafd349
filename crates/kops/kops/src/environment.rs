//! The environment of a command.

use std::{io::Write, time::SystemTime};

/// The environment of a command.
pub struct CommandEnvironment<'a> {
    /// The current time.
    pub now: SystemTime,
    /// The standard output.
    pub out: &'a mut dyn Write,
    /// Returns an environment variable's value.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

impl CommandEnvironment<'_> {
    /// Returns the user's name for locks.
    pub(crate) fn user(&self) -> String {
        (self.environment)("USER").unwrap_or_else(|| "root".to_owned())
    }
}
