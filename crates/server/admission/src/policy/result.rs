//! The result of a policy for one request and parameter.

use std::time::Duration;

use api_meta::StatusReason;

use super::binding::Binding;

/// The result of a policy for one request and parameter.
#[derive(Debug, Default, PartialEq)]
pub struct PolicyResult {
    /// The decision of each validation, and the time that it took.
    pub(super) decisions: Vec<(Decision, Duration)>,
    pub(super) annotations: Vec<Annotation>,
}

/// The decision of one validation.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    Admit,
    /// A failure that the failure policy ignores.
    PassOver,
    Deny {
        message: String,
        reason: StatusReason,
    },
}

/// The result of one audit annotation.
#[derive(Debug, PartialEq)]
pub(super) enum Annotation {
    Nothing,
    Text { key: String, text: String },
    Error(String),
}

impl Decision {
    pub(super) fn deny(message: String, reason: &str) -> Self {
        let reason = match reason {
            "" => StatusReason::Invalid,
            other => StatusReason::from(other),
        };
        Self::Deny { message, reason }
    }

    pub(super) fn error(message: String, fails_open: bool) -> Self {
        if fails_open { Self::PassOver } else { Self::deny(message, "") }
    }
}

impl PolicyResult {
    pub(super) fn failed(message: String, fails_open: bool, took: Duration) -> Self {
        let decision = Decision::error(message, fails_open);
        Self { decisions: vec![(decision, took)], annotations: Vec::new() }
    }

    /// Returns the metrics label of the action on each failed validation, and the validation's duration.
    pub fn enforced<'a>(
        &'a self,
        binding: &'a Binding,
    ) -> impl Iterator<Item = (&'a str, Duration)> {
        let of = |(decision, took): &'a (Decision, Duration)| {
            let actions: Vec<&str> = match decision {
                Decision::Admit => Vec::new(),
                Decision::PassOver => vec!["allow"],
                Decision::Deny { .. } => {
                    let known = [("Deny", "deny"), ("Warn", "warn"), ("Audit", "audit")];
                    let wanted = known
                        .into_iter()
                        .filter(|(action, _)| binding.actions.iter().any(|a| a == action));
                    wanted.map(|(_, label)| label).collect()
                }
            };
            actions.into_iter().map(|action| (action, *took))
        };
        self.decisions.iter().flat_map(of)
    }
}
