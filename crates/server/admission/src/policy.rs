//! Admission policies: decides which policies apply to a request and evaluates their expressions. The API server looks
//! up the parameters and applies the patches.
//!
//! A policy is parsed when it changes and compiled at the first request that it matches. The compiled policy is shared
//! by all requests. Nothing is evaluated for a request that the constraints do not match. Read [`Policy`] first.

mod binding;
mod compiled;
mod decisions;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use api_meta::{GroupResource, GroupVersionKind, Status, Tree as _};
use serde_json::Value;

use self::compiled::Compiled;
pub use self::{
    binding::{Binding, Lookup, Names, ParamRef},
    compiled::{Change, Mutation},
    decisions::{Annotations, Denials, PolicyResult, Refusals},
};
use crate::{
    Request,
    expressions::ExpressionInput,
    matching::{MatchResources, MatchedResource},
};

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

/// A ValidatingAdmissionPolicy or a MutatingAdmissionPolicy.
#[derive(Debug)]
pub struct Policy {
    /// The policy's name.
    pub name: String,
    /// The kind of its parameters; `None` without `paramKind`.
    pub params: Option<GroupVersionKind>,
    /// `true` for `reinvocationPolicy: IfNeeded`.
    pub reinvocable: bool,
    spec: Value,
    constraints: MatchResources,
    fails_open: bool,
    compiled: OnceLock<Compiled>,
}

/// The input of one evaluation: the request, its objects in the version of `shown`, and one parameter or null.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The request.
    pub request: &'a Request<'a>,
    /// The resource as which the policy matches the request.
    pub shown: &'a MatchedResource,
    /// The new and the old object.
    pub objects: (&'a Value, &'a Value),
    /// The request's Namespace; `None` for cluster-scoped objects.
    pub namespace: &'a Option<Arc<Value>>,
    /// The parameter; null without one.
    pub params: &'a Value,
}

impl Question<'_> {
    fn expression_input(&self) -> ExpressionInput<'_> {
        ExpressionInput::new(self.request, self.shown, self.objects, self.params)
    }

    fn expression_input_with_namespace(&self) -> ExpressionInput<'_> {
        self.expression_input().in_namespace(self.namespace.clone())
    }
}

impl Policy {
    /// Reads a policy of either kind. Expressions that do not compile fail at their evaluation.
    pub fn of(policy: &Value) -> Self {
        let spec = &policy["spec"];
        let (group, version) = {
            let version = spec.text("paramKind.apiVersion");
            version.split_once('/').unwrap_or(("", version))
        };
        let kind = spec.text("paramKind.kind");
        let params = GroupVersionKind::new(group.to_owned(), version.to_owned(), kind.to_owned());
        Self {
            name: policy.text("metadata.name").to_owned(),
            params: spec.has("paramKind").then_some(params),
            reinvocable: spec.text("reinvocationPolicy") == "IfNeeded",
            constraints: MatchResources::of(&spec["matchConstraints"]),
            fails_open: spec.text("failurePolicy") == "Ignore",
            compiled: OnceLock::new(),
            spec: spec.clone(),
        }
    }

    /// Reports whether the policy's spec is unchanged, so that the compiled policy can be reused.
    pub fn says(&self, policy: &Value) -> bool {
        self.spec == policy["spec"]
    }

    /// Returns the resource as which the request matches the policy, or `None`.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<MatchedResource>,
    ) -> Result<Option<MatchedResource>, Status> {
        self.constraints.find(request, object, equivalents)
    }

    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| Compiled::of(&self.spec))
    }

    /// Evaluates the validations and audit annotations. `elapsed` returns a monotonic time with an arbitrary start.
    pub fn judge(&self, question: &Question<'_>, elapsed: &dyn Fn() -> Duration) -> PolicyResult {
        self.compiled().judge(question, self.fails_open, elapsed)
    }

    /// Returns the mutations, or none if the match conditions are false. Each mutation is evaluated on the result of
    /// the one before it.
    ///
    /// # Errors
    ///
    /// Returns the error of a match condition.
    pub fn mutations(&self, question: &Question<'_>) -> Result<&[Mutation], String> {
        let compiled = self.compiled();
        match compiled.conditions_hold(question) {
            Ok(true) => Ok(&compiled.mutations),
            Ok(false) => Ok(&[]),
            Err(_) if self.fails_open => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// Evaluates a mutation.
    pub fn change(&self, mutation: &Mutation, question: &Question<'_>) -> Result<Change, String> {
        self.compiled().change(mutation, question)
    }

    /// Returns the request's Namespace for expressions, or `None` for cluster-scoped objects and for Namespaces.
    pub fn namespace(request: &Request<'_>) -> Result<Option<Arc<Value>>, Box<Status>> {
        let is_namespace = request.kind.group.is_empty() && request.kind.kind == "Namespace";
        if request.namespace.is_empty() || is_namespace {
            return Ok(None);
        }
        let found = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
        let missing = || Status::not_found(&GroupResource::NAMESPACES, request.namespace);
        Ok(Some(found.ok_or_else(|| Box::new(missing()))?))
    }
}
