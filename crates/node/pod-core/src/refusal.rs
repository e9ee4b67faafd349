//! The refusal of a Pod by admission.

/// The refusal of a Pod, in the words of its status and of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, in CamelCase.
    pub reason: String,
    /// The explanation for people.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }

    pub(crate) fn predicate(name: &str, message: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {message}"))
    }
}
