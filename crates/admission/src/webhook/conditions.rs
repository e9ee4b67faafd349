//! `matchConditions`: expressions that must all be true for a webhook to be asked. They see the request, the objects as
//! the webhook is shown them, and may ask what the user may do.

use std::sync::{Arc, LazyLock};

use api_meta::{Tree as _, go_quote};
use cel::{
    Asks, Decl, Env, Field, Limits, Object, Opaque, PER_CALL_LIMIT, Program, Shape, Type,
    Value as Cel,
};
use serde_json::{Value, json};

use super::review;
use crate::{Request, matching::Shown};

/// Upstream's limit of what all conditions of a webhook cost for one request.
const COST: u64 = 2_500_000;

/// The conditions of one webhook, compiled once.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions(Arc<[Condition]>);

#[derive(Debug)]
struct Condition {
    expression: String,
    program: Result<Program, String>,
}

/// What conditions may speak of, in this order.
static ENV: LazyLock<Env> = LazyLock::new(|| {
    let own = |name| Type::Opaque(name);
    Env::default()
        .typed("object", Type::Dyn)
        .typed("oldObject", Type::Dyn)
        .variable("request", REQUEST.clone())
        .typed("authorizer", own("kubernetes.authorization.Authorizer"))
        .typed("authorizer.requestResource", own("kubernetes.authorization.ResourceCheck"))
});

/// `request`, as an AdmissionReview has it, without the objects.
static REQUEST: LazyLock<Decl> = LazyLock::new(|| {
    let one = |shape| Decl::new(shape, u64::MAX, 1);
    let made = |name: &str, fields: Vec<(&str, Decl)>| {
        let field =
            |(name, decl): (&str, Decl)| Field { name: name.into(), key: name.into(), decl };
        one(Shape::Object(Object::new(name, fields.into_iter().map(field).collect())))
    };
    let text = || one(Shape::String);
    let texts = || one(Shape::List { item: Arc::new(text()), kind: cel::ListKind::Atomic });
    let kind = made(
        "kubernetes.GroupVersionKind",
        vec![("group", text()), ("version", text()), ("kind", text())],
    );
    let resource = made(
        "kubernetes.GroupVersionResource",
        vec![("group", text()), ("version", text()), ("resource", text())],
    );
    let user = made(
        "kubernetes.UserInfo",
        vec![
            ("username", text()),
            ("uid", text()),
            ("groups", texts()),
            ("extra", one(Shape::Map(Arc::new(texts())))),
        ],
    );
    let fields = vec![
        ("kind", kind.clone()),
        ("resource", resource.clone()),
        ("subResource", text()),
        ("requestKind", kind),
        ("requestResource", resource),
        ("requestSubResource", text()),
        ("name", text()),
        ("namespace", text()),
        ("operation", text()),
        ("userInfo", user),
        ("dryRun", one(Shape::Bool)),
        ("options", Decl::ANY),
    ];
    made("kubernetes.AdmissionRequest", fields)
});

impl Conditions {
    /// Those of a webhook. What does not compile ends in an error whenever it is looked at.
    pub(super) fn of(webhook: &Value) -> Self {
        let condition = |condition: &Value| {
            let expression = condition.text("expression").to_owned();
            let program = match ENV.compile(&expression) {
                Ok(program) if matches!(program.result(), Type::Bool | Type::Dyn) => Ok(program),
                Ok(_) => Err("compilation error: must evaluate to bool".to_owned()),
                Err(issues) => Err(format!("compilation error: compilation failed: {issues}")),
            };
            Condition { expression, program }
        };
        Self(webhook.items("matchConditions").iter().map(condition).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold: one that does not decides, whatever goes wrong with others.
    pub(super) fn hold(
        &self,
        request: &Request<'_>,
        shown: &Shown,
        (object, old): (&Value, &Value),
    ) -> Result<bool, String> {
        let tree = tree(request, shown);
        let request_value = Cel::from_json(&tree, &REQUEST).map_err(|e| e.to_string())?;
        let asks = || Asks { authorizer: request.authorizer.clone(), user: request.user.clone() };
        let variables = [
            Some(Cel::dynamic(object)),
            Some(Cel::dynamic(old)),
            Some(request_value),
            Some(Cel::opaque(Opaque::Authorizer(asks()))),
            Some(Cel::opaque(Opaque::Resource(Box::new(own_resource(request, asks()))))),
        ];
        let (mut left, mut errors) = (COST, Vec::new());
        for condition in self.0.iter() {
            match condition.evaluate(&variables, &mut left) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            [] => Ok(true),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }
}

impl Condition {
    fn evaluate<'v>(
        &'v self,
        variables: &[Option<Cel<'v>>],
        left: &mut u64,
    ) -> Result<bool, String> {
        let program = self.program.as_ref().map_err(Clone::clone)?;
        let limits = Limits { cost: PER_CALL_LIMIT.min(*left), cancelled: None };
        let outcome = program.evaluate(variables, limits);
        *left = left.saturating_sub(outcome.cost);
        let failed = |cause: &dyn std::fmt::Display| {
            format!("expression '{}' resulted in error: {cause}", self.expression)
        };
        match outcome.value {
            Ok(Cel::Bool(holds)) => Ok(holds),
            Ok(other) => Err(failed(&format!(
                "it gave a value of type {}, and must give a bool",
                go_quote(&other.type_of().to_string())
            ))),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn tree(request: &Request<'_>, shown: &Shown) -> Value {
    let head = review::head(request, shown);
    let mut tree = serde_json::to_value(head).unwrap_or_else(|_| json!({}));
    if let Some(members) = tree.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    tree
}

/// What the request is about, as a question to the authoriser that lacks its verb.
fn own_resource(request: &Request<'_>, asks: Asks) -> cel::ResourceCheck {
    cel::ResourceCheck {
        asks,
        group: request.resource.group.to_string(),
        resource: request.resource.resource.to_string(),
        subresource: request.subresource.to_owned(),
        namespace: request.namespace.to_owned(),
        name: request.name.to_owned(),
        fields: None,
        labels: None,
    }
}
