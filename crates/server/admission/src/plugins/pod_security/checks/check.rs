//! A check of a Pod, and the violation that it finds.

use serde_json::Value;

/// A violation: the general reason, and the detail for this Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) reason: String,
    pub(crate) detail: String,
}

/// A check of one control.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// The first minor version with this check.
    pub(crate) since: u32,
    /// The check of a lower level that this one replaces.
    pub(crate) replaces: Option<&'static str>,
    /// Checks a Pod (its `spec` and annotations) by the rules of a minor version.
    pub(crate) find: fn(&Value, u32) -> Option<Violation>,
}

pub(super) fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}
