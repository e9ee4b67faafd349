//! Admission webhooks: decides which webhooks apply to a request, builds their reviews and evaluates their answers. The
//! API server makes the calls. Read [`Webhook`] first.
//!
//! A failed call is handled as the webhook's `failurePolicy` says. A denial, and a patch that cannot be applied, reject
//! the request whatever the failure policy is.

mod definition;
mod failure;
mod review;

pub use self::{
    definition::Webhook,
    failure::Failure,
    review::{Answer, Verdict, WebhookReview},
};
use crate::request::Request;

/// The kinds that webhooks never see. The author of a webhook that rejects everything must be able to delete it.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Reports whether a request is exempt from all webhooks.
pub fn is_exempt(request: &Request<'_>) -> bool {
    request.kind.group == "admissionregistration.k8s.io" && EXEMPT.contains(&&*request.kind.kind)
}

#[cfg(test)]
mod tests;
