//! The CEL environments of admission webhooks and policies: variables, types, and compilation with upstream's error
//! messages.
//!
//! Each variable has a fixed index in [`VARIABLES`], whether an expression uses it or not. One array of values
//! therefore serves all expressions of a request.

pub mod devices;

use std::sync::{Arc, LazyLock};

use cel::{Composition, Decl, Env, Field, Issues, ListKind, Object, Program, Shape, Type};

/// The variables of expressions, in the order of the values for their evaluation.
pub const VARIABLES: [&str; 8] = [
    "object",
    "oldObject",
    "namespaceObject",
    "request",
    "params",
    "authorizer",
    "authorizer.requestResource",
    "variables",
];

/// The result type that an expression must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    Bool,
    Text,
    /// A string or null.
    Annotation,
    Anything,
    /// An apply configuration: `Object{…}`.
    Configuration,
    /// A list of `JSONPatch{…}`.
    Patch,
}

/// The variables that are declared for an expression.
#[derive(Clone, Copy, Default)]
pub struct Scope<'c> {
    /// `true` if `params` is declared.
    pub params: bool,
    /// `true` if `authorizer` is declared.
    pub authorizer: bool,
    /// The composed variables; `None` if `variables` is not declared.
    pub composition: Option<&'c Composition>,
}

/// The error for an expression that does not compile or has a wrong result type, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum ExpressionError {
    #[error("compilation failed: {0}")]
    Compilation(Issues),
    #[error("must evaluate to {expected} but got {actual}")]
    ResultType { expected: &'static str, actual: String },
    #[error("must evaluate to bool or the unknown type, not {0}")]
    SelectorType(String),
}

impl Scope<'_> {
    /// Compiles an expression, whose result must have the type `result`.
    pub fn compile(&self, text: &str, result: ResultType) -> Result<Program, ExpressionError> {
        let env = self.env(text, Type::Dyn, Type::Dyn);
        let env = match result {
            ResultType::Configuration | ResultType::Patch => env.with_mutation(),
            _ => env,
        };
        let program = Program::compile(&env, text).map_err(ExpressionError::Compilation)?;
        let actual = program.result().declared();
        let expected = match result {
            ResultType::Bool => "bool",
            ResultType::Text => "string",
            ResultType::Annotation if matches!(&*actual, "string" | "null_type") => {
                return Ok(program);
            }
            ResultType::Annotation => "one of [string null_type]",
            ResultType::Anything => return Ok(program),
            ResultType::Configuration => "Object",
            ResultType::Patch => "list(JSONPatch)",
        };
        if actual == expected {
            return Ok(program);
        }
        Err(ExpressionError::ResultType { expected, actual })
    }

    /// Returns the environment in which `text` is compiled, for objects and parameters of the given types.
    pub fn env(&self, text: &str, object: Type, params: Type) -> Env {
        let own = |env: Env, name: &str, ty: &'static str| {
            if self.authorizer { env.typed(name, Type::Opaque(ty)) } else { env.without() }
        };
        let env = Env::default()
            .typed(VARIABLES[0], object.clone())
            .typed(VARIABLES[1], object)
            .variable(VARIABLES[2], NAMESPACE.clone())
            .variable(VARIABLES[3], REQUEST.clone());
        let env = if self.params { env.typed(VARIABLES[4], params) } else { env.without() };
        let env = own(env, VARIABLES[5], "kubernetes.authorization.Authorizer");
        let env = own(env, VARIABLES[6], "kubernetes.authorization.ResourceCheck");
        match self.composition {
            Some(composition) => composition.declared_in(env, text),
            None => env,
        }
    }
}

fn one(shape: Shape) -> Decl {
    Decl::new(shape, u64::MAX, 1)
}

fn text() -> Decl {
    one(Shape::String)
}

fn list(item: Decl) -> Decl {
    one(Shape::List { item: Arc::new(item), kind: ListKind::Atomic })
}

fn map(value: Decl) -> Decl {
    one(Shape::Map(Arc::new(value)))
}

fn object(name: &str, fields: Vec<(&str, Decl)>) -> Decl {
    let field = |(name, decl): (&str, Decl)| Field { name: name.into(), key: name.into(), decl };
    one(Shape::Object(Object::new(name, fields.into_iter().map(field).collect())))
}

/// The type of a user, as in reviews.
pub static USER_INFO: LazyLock<Decl> = LazyLock::new(|| {
    let fields = vec![
        ("username", text()),
        ("uid", text()),
        ("groups", list(text())),
        ("extra", map(list(text()))),
    ];
    object("kubernetes.UserInfo", fields)
});

/// The `request` in match conditions of an authorization webhook: the spec of a SubjectAccessReview.
pub static ACCESS_REVIEW: LazyLock<Decl> = LazyLock::new(|| {
    let texts =
        |names: &[&'static str]| -> Vec<_> { names.iter().map(|name| (*name, text())).collect() };
    let requirement = {
        let mut fields = texts(&["key", "operator"]);
        fields.push(("values", list(text())));
        object("kubernetes.SelectorRequirement", fields)
    };
    let selector = |name| {
        let fields = vec![("rawSelector", text()), ("requirements", list(requirement.clone()))];
        object(name, fields)
    };
    let mut resource =
        texts(&["namespace", "verb", "group", "version", "resource", "subresource", "name"]);
    resource.push(("fieldSelector", selector("kubernetes.FieldSelectorAttributes")));
    resource.push(("labelSelector", selector("kubernetes.LabelSelectorAttributes")));
    let path = object("kubernetes.NonResourceAttributes", texts(&["path", "verb"]));
    let mut fields = texts(&["user", "uid"]);
    fields.extend([
        ("resourceAttributes", object("kubernetes.ResourceAttributes", resource)),
        ("nonResourceAttributes", path),
        ("groups", list(text())),
        ("extra", map(list(text()))),
    ]);
    object("kubernetes.SubjectAccessReviewSpec", fields)
});

/// The `request` of an AdmissionReview, without the objects.
pub static REQUEST: LazyLock<Decl> = LazyLock::new(|| {
    let texts = |name, fields: &[&'static str]| {
        object(name, fields.iter().map(|field| (*field, text())).collect())
    };
    let kind = texts("kubernetes.GroupVersionKind", &["group", "version", "kind"]);
    let resource = texts("kubernetes.GroupVersionResource", &["group", "version", "resource"]);
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
        ("userInfo", USER_INFO.clone()),
        ("dryRun", one(Shape::Bool)),
        ("options", Decl::ANY),
    ];
    object("kubernetes.AdmissionRequest", fields)
});

/// The `namespaceObject` with the fields that upstream declares.
pub static NAMESPACE: LazyLock<Decl> = LazyLock::new(|| {
    let (time, number) = (|| one(Shape::Timestamp), || one(Shape::Int));
    let condition = vec![
        ("status", text()),
        ("type", text()),
        ("lastTransitionTime", time()),
        ("message", text()),
        ("reason", text()),
    ];
    let metadata = vec![
        ("name", text()),
        ("generateName", text()),
        ("namespace", text()),
        ("labels", map(text())),
        ("annotations", map(text())),
        ("UID", text()),
        ("creationTimestamp", time()),
        ("deletionGracePeriodSeconds", number()),
        ("deletionTimestamp", time()),
        ("generation", number()),
        ("resourceVersion", text()),
        ("finalizers", list(text())),
    ];
    let status = vec![
        ("conditions", list(object("kubernetes.NamespaceCondition", condition))),
        ("phase", text()),
    ];
    let spec = vec![("finalizers", list(text()))];
    let fields = vec![
        ("metadata", object("kubernetes.NamespaceMetadata", metadata)),
        ("spec", object("kubernetes.NamespaceSpec", spec)),
        ("status", object("kubernetes.NamespaceStatus", status)),
    ];
    object("kubernetes.Namespace", fields)
});
