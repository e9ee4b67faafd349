//! A requirement on the host that is not met.

use std::fmt;

/// A requirement that is not met.
#[derive(Debug)]
pub struct Problem {
    /// Upstream's name of the check, if it has one.
    pub check: &'static str,
    /// The cause.
    pub cause: String,
    /// The solution.
    pub cure: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}; {}", self.check, self.cause, self.cure)
    }
}
