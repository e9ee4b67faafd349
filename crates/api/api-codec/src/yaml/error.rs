//! The error of reading and writing YAML, in the words of Go's packages.

use api_meta::BudgetExceeded;

/// The error for a text that is not YAML, with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error converting YAML to JSON: {0}")]
pub struct YamlError(String);

impl YamlError {
    /// Returns the problem without its prefix.
    pub fn cause(&self) -> &str {
        &self.0
    }

    pub(super) fn new(problem: String) -> Self {
        Self(format!("yaml: {problem}"))
    }

    /// Creates an error of the conversion to JSON, which has no `yaml:` prefix.
    pub(super) fn plain(problem: String) -> Self {
        Self(problem)
    }

    /// Creates an error with a line number. Go omits line zero.
    pub(super) fn at(line: usize, problem: &str) -> Self {
        match line {
            0 => Self::new(problem.to_owned()),
            line => Self::new(format!("line {line}: {problem}")),
        }
    }
}

impl From<BudgetExceeded> for YamlError {
    fn from(exceeded: BudgetExceeded) -> Self {
        Self::new(exceeded.to_string())
    }
}
