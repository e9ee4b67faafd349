//! Compilation and evaluation errors. They use upstream's words and format, because users search for them.

use std::fmt;

/// The errors of an expression that does not parse or type-check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issues {
    source: Source,
    issues: Vec<Issue>,
}

/// An error and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The position in code points from the start of the text.
    at: u32,
    /// The message.
    pub message: String,
}

/// The text of an expression, for showing positions in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    text: String,
}

/// The longest line in code points that a message shows.
const MAX_SNIPPET: usize = 16_384;

impl Issue {
    pub(crate) fn new(at: u32, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// Returns the line number (from one), the column (from zero), and the text of the line at a position.
    fn place(&self, at: u32) -> (usize, usize, &str) {
        let (mut line, mut column, mut start) = (1, 0, 0);
        for (count, (offset, c)) in self.text.char_indices().enumerate() {
            if count == at as usize {
                break;
            }
            if c == '\n' {
                (line, column, start) = (line + 1, 0, offset + 1);
            } else {
                column += 1;
            }
        }
        let rest = &self.text[start..];
        (line, column, rest.split('\n').next().unwrap_or_default())
    }
}

impl Issues {
    pub(crate) fn new(source: Source, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|issue| issue.at);
        Self { source, issues }
    }

    /// Returns the issues in the order of their positions.
    pub fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.issues.iter()
    }

    fn show(&self, issue: &Issue, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column, text) = self.source.place(issue.at);
        write!(f, "ERROR: <input>:{line}:{}: {}", column + 1, issue.message)?;
        if text.chars().count() > MAX_SNIPPET {
            return Ok(());
        }
        let text = text.replace('\t', " ");
        write!(f, "\n | {text}\n | ")?;
        let mut characters = text.chars();
        for c in characters.by_ref().take(column) {
            // Wide characters are padded with a wide dot.
            f.write_str(if c.len_utf8() > 1 { "\u{ff0e}" } else { "." })?;
        }
        f.write_str(if characters.next().is_some_and(|c| c.len_utf8() > 1) {
            "\u{ff3e}"
        } else {
            "^"
        })
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, issue) in self.issues.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            self.show(issue, f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Issues {}

/// An error of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The expression failed: a missing key, a division by zero, or a value of the wrong type.
    #[error("{0}")]
    Failed(String),
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// The caller's deadline has passed.
    #[error("operation interrupted")]
    Interrupted,
}

impl EvalError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub(crate) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }

    pub(crate) fn no_such_key(key: impl fmt::Display) -> Self {
        Self::Failed(format!("no such key: {key}"))
    }

    /// Reports whether the other operand of `&&` and `||` can hide the error. Errors that end the evaluation cannot be
    /// hidden.
    pub(crate) fn is_absorbable(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}
