//! A check, its result, and the report of several checks.

use std::{collections::BTreeSet, fmt::Write, path::Path};

use crate::{Error, FlagError};

/// A failed check: its cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `true` if the problem stops the command; a warning is only printed.
    pub fatal: bool,
    /// The cause.
    pub cause: String,
    /// The remedy.
    pub cure: String,
}

impl Problem {
    pub(super) fn error(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { fatal: true, cause: cause.into(), cure: cure.into() }
    }

    pub(super) fn warning(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { fatal: false, cause: cause.into(), cure: cure.into() }
    }
}

/// A check with its result.
pub struct Check {
    /// kubeadm's name of the check, such as `Port-6443`.
    pub name: String,
    /// The result.
    pub result: Result<(), Problem>,
}

impl Check {
    pub(super) fn new(name: impl Into<String>, result: Result<(), Problem>) -> Self {
        Self { name: name.into(), result }
    }
}

/// The checks whose errors are only warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(BTreeSet<String>);

impl Ignored {
    /// Parses names from flags and configuration. Case is ignored, and `all` must be the only name.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, Error> {
        let names: BTreeSet<String> = names
            .into_iter()
            .flat_map(|n| n.split(',').map(|n| n.trim().to_lowercase()).collect::<Vec<_>>())
            .filter(|n| !n.is_empty())
            .collect();
        if names.contains("all") && names.len() > 1 {
            return Err(FlagError::IgnoredChecks.into());
        }
        Ok(Self(names))
    }

    fn covers(&self, name: &str) -> bool {
        self.0.contains("all") || self.0.contains(&name.to_lowercase())
    }
}

/// Prints the warnings, and returns the errors that are not ignored.
pub fn check(checks: Vec<Check>, ignored: &Ignored) -> Result<(), Error> {
    let mut fatal = String::new();
    for Check { name, result } in checks {
        let Err(problem) = result else { continue };
        let text = format!("{}; {}", problem.cause, problem.cure);
        if problem.fatal && !ignored.covers(&name) {
            let _ = writeln!(fatal, "\t[ERROR {name}]: {text}");
        } else {
            eprintln!("\t[WARNING {name}]: {text}");
        }
    }
    if fatal.is_empty() { Ok(()) } else { Err(Error::Preflight(fatal)) }
}

/// Returns a path in the format of a check's name.
pub(super) fn label(path: &Path) -> String {
    path.to_string_lossy().replace('/', "-")
}
