//! A policy: its match constraints, and its expressions, which are compiled at the first use.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use api_meta::{GroupResource, GroupVersionKind, Status, Tree as _};
use serde_json::Value;

use super::{
    compiled::{Change, CompiledPolicy, Mutation, MutationError},
    question::Question,
    result::PolicyResult,
};
use crate::{
    expressions::ExpressionError,
    matching::{MatchResources, MatchedResource},
    request::Request,
};

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
    pub(super) fails_open: bool,
    compiled: OnceLock<CompiledPolicy>,
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
    pub fn is_unchanged(&self, policy: &Value) -> bool {
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

    fn compiled(&self) -> &CompiledPolicy {
        self.compiled.get_or_init(|| CompiledPolicy::of(&self.spec))
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
    pub fn mutations(&self, question: &Question<'_>) -> Result<&[Mutation], ExpressionError> {
        let compiled = self.compiled();
        match compiled.conditions_hold(question) {
            Ok(true) => Ok(&compiled.mutations),
            Ok(false) => Ok(&[]),
            Err(_) if self.fails_open => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// Evaluates a mutation.
    pub fn change(
        &self,
        mutation: &Mutation,
        question: &Question<'_>,
    ) -> Result<Change, MutationError> {
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
