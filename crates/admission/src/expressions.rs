//! Evaluating the expressions of webhooks and policies: what they see of a request, and what they may cost.
//!
//! Each expression may cost what upstream lets one cost, and all of a kind together no more than their budget: when that
//! is spent the rest is not evaluated.

use std::sync::Arc;

use api_meta::GroupResource;
use api_rules::expressions::{NAMESPACE, REQUEST};
use cel::{
    Activation, Asks, Composition, EvalError, Limits, Opaque, PER_CALL_LIMIT, Program, Value as Cel,
};
use serde_json::{Value, json};

use crate::{Request, matching::Shown, webhook::head};

/// Upstream's limit of what the validations of a policy, and their messages, cost for one request and parameter; of
/// what its audit annotations cost; and of what each mutation costs.
pub(crate) const BUDGET: u64 = 10_000_000;
/// Upstream's limit of what all conditions of a webhook or a policy cost for one request.
pub(crate) const CONDITIONS_BUDGET: u64 = BUDGET / 4;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
/// The place of `variables`.
const VARIABLES: usize = 7;

/// An expression, compiled once. One that does not compile fails whenever it is looked at.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) text: String,
    pub(crate) program: Result<Program, String>,
}

/// What expressions see of a request.
pub(crate) struct Seen<'a> {
    object: &'a Value,
    old: &'a Value,
    namespace: Option<Arc<Value>>,
    params: &'a Value,
    request: Value,
    asks: Asks,
    own: cel::ResourceCheck,
}

impl<'a> Seen<'a> {
    /// Objects are as `shown` has them.
    pub(crate) fn new(
        request: &Request<'_>,
        shown: &Shown,
        (object, old): (&'a Value, &'a Value),
        params: &'a Value,
    ) -> Self {
        let asks = Asks { authorizer: request.authorizer.clone(), user: request.user.clone() };
        let own = own_resource(request, asks.clone());
        Self { object, old, namespace: None, params, request: tree(request, shown), asks, own }
    }

    /// The same with the request's namespace, which conditions do not see.
    pub(crate) fn in_namespace(self, namespace: Option<Arc<Value>>) -> Self {
        Self { namespace, ..self }
    }

    /// Values for a number of expressions, which share what their variables come to.
    pub(crate) fn activation<'v>(
        &'v self,
        composition: Option<&'v Composition>,
    ) -> Result<Activation<'v>, String> {
        static NULL: Value = Value::Null;
        let declared =
            |tree: &'v Value, decl| Cel::from_json(tree, decl).map_err(|e| e.to_string());
        let namespace = self.namespace.as_deref().unwrap_or(&NULL);
        let values = vec![
            Some(Cel::dynamic(self.object)),
            Some(Cel::dynamic(self.old)),
            Some(declared(namespace, &NAMESPACE)?),
            Some(declared(&self.request, &REQUEST)?),
            Some(Cel::dynamic(self.params)),
            Some(Cel::opaque(Opaque::Authorizer(self.asks.clone()))),
            Some(Cel::opaque(Opaque::Resource(Box::new(self.own.clone())))),
            None,
        ];
        Ok(Activation::new(values, composition.map(|composition| (composition, VARIABLES))))
    }
}

/// What is spent by the expressions that are evaluated in one activation.
pub(crate) struct Run<'v> {
    activation: Activation<'v>,
    pub(crate) left: u64,
}

/// The budget is spent; what follows is not evaluated.
#[derive(Debug)]
pub(crate) struct OutOfBudget;

impl OutOfBudget {
    pub(crate) fn message(&self) -> String {
        OUT_OF_BUDGET.to_owned()
    }
}

impl<'v> Run<'v> {
    pub(crate) fn new(activation: Activation<'v>, left: u64) -> Self {
        Self { activation, left }
    }

    /// The value of an expression, or why it has none.
    pub(crate) fn evaluate(
        &mut self,
        expression: &'v Expression,
    ) -> Result<Result<Cel<'v>, String>, OutOfBudget> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(error) => return Ok(Err(format!("compilation error: {error}"))),
        };
        let limits = Limits { cost: PER_CALL_LIMIT, cancelled: None };
        let outcome = program.evaluate_in(&self.activation, limits);
        let cost = outcome.cost.saturating_add(self.activation.take_cost());
        self.left = self.left.checked_sub(cost).ok_or(OutOfBudget)?;
        let text = &expression.text;
        let failed = |error: EvalError| format!("expression '{text}' resulted in error: {error}");
        Ok(outcome.value.map_err(failed))
    }
}

fn tree(request: &Request<'_>, shown: &Shown) -> Value {
    let head = head(request, shown);
    let mut tree = serde_json::to_value(head).unwrap_or_else(|_| json!({}));
    if let Some(members) = tree.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    tree
}

/// What the request is about, as a question to the authoriser that lacks its verb.
fn own_resource(request: &Request<'_>, asks: Asks) -> cel::ResourceCheck {
    let GroupResource { group, resource } = request.resource.group_resource();
    cel::ResourceCheck {
        asks,
        group: group.to_string(),
        resource: resource.to_string(),
        subresource: request.subresource.to_owned(),
        namespace: request.namespace.to_owned(),
        name: request.name.to_owned(),
        fields: None,
        labels: None,
    }
}
