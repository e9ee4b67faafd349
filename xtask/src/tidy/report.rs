//! The result of the checks.

/// The violations of rules, and notes on what comes close to one.
#[derive(Default)]
pub(super) struct Report {
    pub(super) problems: Vec<String>,
    pub(super) notes: Vec<String>,
}
