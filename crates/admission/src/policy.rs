//! Admission policies: which of them a request concerns, and what their expressions say of it. Parameters are found, and
//! patches carried out, by the API server.
//!
//! A policy is read when it changes and compiled when a request first concerns it, once for all requests. Nothing of it
//! is evaluated for a request that its constraints do not match.

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
    decisions::{Annotations, Denials, Judged, Refusals},
};
use crate::{
    Request,
    expressions::Seen,
    matching::{MatchResources, Shown},
};

/// The resources that no policy is asked about: whoever makes a policy that refuses everything must be able to take it
/// away, and a cluster that does not answer who may do what is of no use.
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

/// Whether no policy is asked about a request.
pub fn is_exempt(request: &Request<'_>) -> bool {
    let GroupResource { group, resource } = request.resource.group_resource();
    EXEMPT.contains(&(&*group, &*resource))
}

/// A ValidatingAdmissionPolicy or a MutatingAdmissionPolicy.
#[derive(Debug)]
pub struct Policy {
    pub name: String,
    pub params: Option<GroupVersionKind>,
    /// `reinvocationPolicy: IfNeeded`
    pub reinvocable: bool,
    spec: Value,
    constraints: MatchResources,
    fails_open: bool,
    compiled: OnceLock<Compiled>,
}

/// What a policy is asked about: the objects as `shown` has them, and one parameter, or null.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub request: &'a Request<'a>,
    pub shown: &'a Shown,
    /// The object, and what it was before.
    pub objects: (&'a Value, &'a Value),
    pub namespace: &'a Option<Arc<Value>>,
    pub params: &'a Value,
}

impl Question<'_> {
    fn seen(&self) -> Seen<'_> {
        Seen::new(self.request, self.shown, self.objects, self.params)
    }

    fn seen_in_namespace(&self) -> Seen<'_> {
        self.seen().in_namespace(self.namespace.clone())
    }
}

impl Policy {
    /// Reads a policy of either kind; expressions that do not compile fail when they are asked.
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

    /// Whether a policy says the same as this one, so that what was compiled of it serves on.
    pub fn says(&self, policy: &Value) -> bool {
        self.spec == policy["spec"]
    }

    /// As what the policy is to be asked about a request, if it is.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<Shown>,
    ) -> Result<Option<Shown>, Status> {
        self.constraints.find(request, object, equivalents)
    }

    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| Compiled::of(&self.spec))
    }

    /// What the policy's validations and audit annotations say. `elapsed` is asked for the time, from any beginning.
    pub fn judge(&self, question: &Question<'_>, elapsed: &dyn Fn() -> Duration) -> Judged {
        self.compiled().judge(question, self.fails_open, elapsed)
    }

    /// The mutations, each to be evaluated on what the one before it has made; nothing, if the policy's conditions do
    /// not hold. An error is one of conditions.
    pub fn mutations(&self, question: &Question<'_>) -> Result<&[Mutation], String> {
        let compiled = self.compiled();
        match compiled.conditions_hold(question) {
            Ok(true) => Ok(&compiled.mutations),
            Ok(false) => Ok(&[]),
            Err(_) if self.fails_open => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// What a mutation makes of the object.
    pub fn change(&self, mutation: &Mutation, question: &Question<'_>) -> Result<Change, String> {
        self.compiled().change(mutation, question)
    }

    /// `request`'s namespace, for expressions: a Namespace has none, though it is named by itself.
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
