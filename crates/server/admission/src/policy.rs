//! Admission policies: decides which policies apply to a request and evaluates their expressions. The API server looks
//! up the parameters and applies the patches.
//!
//! A policy is parsed when it changes and compiled at the first request that it matches. The compiled policy is shared
//! by all requests. Nothing is evaluated for a request that the constraints do not match. Read [`Policy`] first.

mod binding;
mod compiled;
mod decisions;
mod definition;
mod question;
mod result;

use api_meta::GroupResource;

pub use self::{
    binding::{Binding, Lookup, Names, ParamError, ParamRef},
    compiled::{Change, Mutation, MutationError},
    decisions::{Annotations, Denials, Refusals},
    definition::Policy,
    question::Question,
    result::PolicyResult,
};
use crate::request::Request;

/// The resources that no policy applies to. The author of a policy that rejects everything must be able to delete it,
/// and authorization reviews must keep working.
const EXEMPT: [(&str, &str); 12] = [
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Reports whether a request is exempt from all policies.
pub fn is_exempt(request: &Request<'_>) -> bool {
    let GroupResource { group, resource } = request.resource.group_resource();
    EXEMPT.contains(&(&*group, &*resource))
}

#[cfg(test)]
mod tests;
