//! Turns the results of policies into a rejection, warnings and audit annotations.

use std::fmt::Display;

use api_meta::{Status, StatusCause, StatusReason};
use serde::Serialize;
use serde_json::Value;

use super::{
    binding::Binding,
    definition::Policy,
    result::{Annotation, Decision, PolicyResult},
};
use crate::request::{Outcome, Request};

const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";
/// The longest value of an audit annotation, in bytes.
const MAX_ANNOTATION: usize = 10 * 1024;

/// The failures of validating policies for one request. The first one is reported to the client.
#[derive(Debug, Default)]
pub struct Denials(Vec<(String, StatusReason)>);

/// A failure in the audit log's format.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    message: &'a str,
    policy: &'a str,
    binding: &'a str,
    expression_index: usize,
    validation_actions: &'a [String],
}

impl Denials {
    fn add(
        &mut self,
        policy: &Policy,
        binding: Option<&Binding>,
        cause: &str,
        reason: StatusReason,
    ) {
        let binding = binding.map_or_else(String::new, |b| format!(" with binding '{}'", b.name));
        let policy = &policy.name;
        let message =
            format!("ValidatingAdmissionPolicy '{policy}'{binding} denied request: {cause}");
        self.0.push((message, reason));
    }

    /// Records a policy that could not be evaluated.
    pub fn record_misconfiguration(
        &mut self,
        policy: &Policy,
        binding: Option<&Binding>,
        cause: impl Display,
    ) {
        if !policy.fails_open {
            let message = misconfiguration(binding, cause);
            self.add(policy, binding, &message, StatusReason::Invalid);
        }
    }

    /// Carries out the binding's actions on the result of a policy. Audit annotations are added to `kept`.
    pub fn take(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        judged: PolicyResult,
        outcome: &mut Outcome,
        kept: &mut Annotations,
    ) {
        for (index, (decision, _)) in judged.decisions.into_iter().enumerate() {
            let Decision::Deny { message, reason } = decision else { continue };
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.add(policy, Some(binding), &message, reason.clone()),
                    "Warn" => outcome.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                        policy.name, binding.name
                    )),
                    "Audit" => audit(policy, binding, index, &message, outcome),
                    _ => {}
                }
            }
        }
        for annotation in judged.annotations {
            match annotation {
                Annotation::Nothing => {}
                Annotation::Text { key, text } => kept.add(key, text),
                Annotation::Error(error) => {
                    self.add(policy, Some(binding), &error, StatusReason::Invalid);
                }
            }
        }
    }

    /// Returns the rejection if an action is `Deny`.
    pub fn settle(self, request: &Request<'_>, object: &Value) -> Result<(), Box<Status>> {
        let Some((message, reason)) = self.0.into_iter().next() else { return Ok(()) };
        let mut status = request.forbidden(object, &message);
        status.code = match reason {
            StatusReason::Forbidden => 403,
            StatusReason::Unauthorized => 401,
            StatusReason::RequestEntityTooLarge => 413,
            _ => 422,
        };
        status.reason = reason;
        let cause = StatusCause { message, ..StatusCause::default() };
        status.details.get_or_insert_default().causes.push(cause);
        Err(Box::new(status))
    }
}

fn misconfiguration(binding: Option<&Binding>, cause: impl Display) -> String {
    let subject = if binding.is_some() { "binding" } else { "policy" };
    format!("failed to configure {subject}: {cause}")
}

/// Adds a failure to the audit log. Only the first failure of a request is recorded.
fn audit(policy: &Policy, binding: &Binding, index: usize, message: &str, outcome: &mut Outcome) {
    let failure = Failure {
        message,
        policy: &policy.name,
        binding: &binding.name,
        expression_index: index,
        validation_actions: &binding.actions,
    };
    let text = serde_json::to_string(&[failure]).unwrap_or_default();
    // Go's JSON encoder escapes these characters.
    let text = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    outcome.audit.entry(FAILURE.to_owned()).or_insert(text);
}

/// The audit annotations of one policy. Distinct values of one key, from several parameters or bindings, are joined.
#[derive(Debug, Default)]
pub struct Annotations(std::collections::BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, key: String, mut text: String) {
        if text.len() > MAX_ANNOTATION {
            text.truncate(text.floor_char_boundary(MAX_ANNOTATION));
        }
        let values = self.0.entry(key).or_default();
        if !values.contains(&text) {
            values.push(text);
        }
    }

    /// Adds the annotations to the request's, with the policy's name as the prefix of each key.
    pub fn publish(self, policy: &Policy, outcome: &mut Outcome) {
        for (key, values) in self.0 {
            outcome.audit.insert(format!("{}/{key}", policy.name), values.join(", "));
        }
    }
}

/// The failures of mutating policies for one request. The first is the message, and all are causes.
#[derive(Debug, Default)]
pub struct Refusals(Vec<(String, Option<StatusReason>)>);

impl Refusals {
    /// Records a policy that could not be evaluated.
    pub fn record_misconfiguration(
        &mut self,
        policy: &Policy,
        binding: Option<&Binding>,
        cause: impl Display,
    ) {
        self.add(policy, binding, misconfiguration(binding, cause), None);
    }

    /// Records a policy with a failing expression.
    pub fn record_failure(&mut self, policy: &Policy, binding: &Binding, cause: impl Display) {
        self.add(policy, Some(binding), cause, Some(StatusReason::Invalid));
    }

    fn add(
        &mut self,
        policy: &Policy,
        binding: Option<&Binding>,
        cause: impl Display,
        reason: Option<StatusReason>,
    ) {
        if policy.fails_open {
            return;
        }
        let name = &policy.name;
        let message = match binding {
            Some(binding) => {
                format!("policy '{name}' with binding '{}' denied request: {cause}", binding.name)
            }
            None => format!("policy {} denied request: {cause}", api_meta::go_quote(name)),
        };
        self.0.push((message, reason));
    }

    /// Returns the rejection if there is a failure.
    pub fn settle(self, request: &Request<'_>, object: &Value) -> Result<(), Box<Status>> {
        let Some((message, reason)) = self.0.first().cloned() else { return Ok(()) };
        let mut status = request.forbidden(object, "");
        status.message = message;
        status.reason = reason.unwrap_or(status.reason);
        let causes = self.0.into_iter();
        let causes = causes.map(|(message, _)| StatusCause { message, ..StatusCause::default() });
        status.details.get_or_insert_default().causes.extend(causes);
        Err(Box::new(status))
    }
}
