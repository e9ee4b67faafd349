//! Evaluates the CEL expressions of webhooks and policies within upstream's cost limits.
//!
//! Each expression has upstream's limit per call, and all expressions of one kind share a budget. Once the budget is
//! spent, the remaining expressions are not evaluated.

use std::sync::Arc;

use api_meta::GroupResource;
use api_rules::expressions::{ExpressionError as CompileError, NAMESPACE, REQUEST};
use cel::{
    Activation, AuthorizerContext, Composition, EvalError, Limits, Opaque, PER_CALL_LIMIT, Program,
    Value as Cel,
};
use serde_json::{Value, json};

use crate::{matching::MatchedResource, request::Request, request_attributes::RequestAttributes};

/// Upstream's cost budget for one request and parameter. It applies separately to a policy's validations with their
/// messages, to its audit annotations, and to each mutation.
pub(crate) const BUDGET: u64 = 10_000_000;
/// Upstream's cost budget for all match conditions of a webhook or policy on one request.
pub(crate) const CONDITIONS_BUDGET: u64 = BUDGET / 4;

/// The index of `variables` among the declared variables.
const VARIABLES: usize = 7;

/// The reason why an expression has no result, with upstream's messages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExpressionError {
    #[error("compilation error: {0}")]
    Compilation(String),
    /// A value cannot be converted to or from the declared type.
    #[error(transparent)]
    Value(#[from] EvalError),
    #[error("expression '{expression}' resulted in error: {source}")]
    Evaluation { expression: String, source: EvalError },
    #[error(transparent)]
    OutOfBudget(#[from] OutOfBudget),
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Self>),
}

/// The error for a spent budget. The remaining expressions are not evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "validation failed due to running out of cost budget, no further validation rules will be run"
)]
pub struct OutOfBudget;

/// An expression, compiled once. If it does not compile, each evaluation fails.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) text: String,
    pub(crate) program: Result<Program, CompileError>,
}

/// The variables of a request that expressions can read.
pub(crate) struct ExpressionInput<'a> {
    object: &'a Value,
    old: &'a Value,
    namespace: Option<Arc<Value>>,
    params: &'a Value,
    request: Value,
    asks: AuthorizerContext,
    own: cel::ResourceCheck,
}

impl<'a> ExpressionInput<'a> {
    /// Creates the input from objects that are in the version of `shown`.
    pub(crate) fn new(
        request: &Request<'_>,
        shown: &MatchedResource,
        (object, old): (&'a Value, &'a Value),
        params: &'a Value,
    ) -> Self {
        let asks = AuthorizerContext {
            authorizer: request.authorizer.clone(),
            user: request.user.clone(),
        };
        let own = own_resource(request, asks.clone());
        Self { object, old, namespace: None, params, request: tree(request, shown), asks, own }
    }

    /// Adds the request's namespace, which match conditions do not see.
    pub(crate) fn in_namespace(self, namespace: Option<Arc<Value>>) -> Self {
        Self { namespace, ..self }
    }

    /// Builds the values for several expressions, which share the results of composed variables.
    pub(crate) fn activation<'v>(
        &'v self,
        composition: Option<&'v Composition>,
    ) -> Result<Activation<'v>, EvalError> {
        static NULL: Value = Value::Null;
        let namespace = self.namespace.as_deref().unwrap_or(&NULL);
        let values = vec![
            Some(Cel::dynamic(self.object)),
            Some(Cel::dynamic(self.old)),
            Some(Cel::from_json(namespace, &NAMESPACE)?),
            Some(Cel::from_json(&self.request, &REQUEST)?),
            Some(Cel::dynamic(self.params)),
            Some(Cel::opaque(Opaque::Authorizer(self.asks.clone()))),
            Some(Cel::opaque(Opaque::Resource(Box::new(self.own.clone())))),
            None,
        ];
        let activation = Activation::new(values);
        Ok(match composition {
            Some(composition) => activation.with_composition(composition, VARIABLES),
            None => activation,
        })
    }
}

/// An evaluation of several expressions in one activation with a shared cost budget.
pub(crate) struct Run<'v> {
    activation: Activation<'v>,
    pub(crate) left: u64,
}

impl<'v> Run<'v> {
    pub(crate) fn new(activation: Activation<'v>, left: u64) -> Self {
        Self { activation, left }
    }

    /// Returns the value of an expression, or its evaluation error.
    pub(crate) fn evaluate(
        &mut self,
        expression: &'v Expression,
    ) -> Result<Result<Cel<'v>, ExpressionError>, OutOfBudget> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(error) => return Ok(Err(ExpressionError::Compilation(error.to_string()))),
        };
        let limits = Limits { cost: PER_CALL_LIMIT, cancelled: None };
        let outcome = program.evaluate_in(&self.activation, limits);
        let cost = outcome.cost.saturating_add(self.activation.take_cost());
        self.left = self.left.checked_sub(cost).ok_or(OutOfBudget)?;
        let failed =
            |source| ExpressionError::Evaluation { expression: expression.text.clone(), source };
        Ok(outcome.value.map_err(failed))
    }
}

fn tree(request: &Request<'_>, shown: &MatchedResource) -> Value {
    let attributes = RequestAttributes::of(request, shown);
    let mut tree = serde_json::to_value(attributes).unwrap_or_else(|_| json!({}));
    if let Some(members) = tree.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    tree
}

/// Builds an authorization check for the request's resource, without a verb.
fn own_resource(request: &Request<'_>, context: AuthorizerContext) -> cel::ResourceCheck {
    let GroupResource { group, resource } = request.resource.group_resource();
    cel::ResourceCheck {
        context,
        group: group.to_string(),
        resource: resource.to_string(),
        subresource: request.subresource.to_owned(),
        namespace: request.namespace.to_owned(),
        name: request.name.to_owned(),
        fields: None,
        labels: None,
    }
}
