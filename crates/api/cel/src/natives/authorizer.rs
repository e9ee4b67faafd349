//! The `authorizer` library: authorization checks by the server's authorizers.

use api_meta::{Attributes, Decision, UserInfo, validation};

use crate::{
    cost::{charges, estimates},
    error::EvalError,
    function::{Function, Library, mistyped},
    opaque::{AuthorizationDecision, AuthorizerContext, Opaque, ResourceCheck},
    value::{Eval, Value, Work},
};

/// The `authorizer` library.
pub(super) static CHECKS: Library = Library::since(
    27,
    &[
        Function::new(
            "path",
            "kubernetes.authorization.Authorizer#(string) kubernetes.authorization.PathCheck",
            path,
        ),
        Function::new(
            "group",
            "kubernetes.authorization.Authorizer#(string) kubernetes.authorization.GroupCheck",
            group,
        ),
        Function::new(
            "serviceAccount",
            "kubernetes.authorization.Authorizer#(string, string) kubernetes.authorization.Authorizer",
            service_account,
        ),
        Function::new(
            "resource",
            "kubernetes.authorization.GroupCheck#(string) kubernetes.authorization.ResourceCheck",
            resource,
        ),
        Function::new("subresource", REFINEMENT, |_, args| {
            refine_check(args, |check, text| check.subresource = text)
        }),
        Function::new("namespace", REFINEMENT, |_, args| {
            refine_check(args, |check, text| check.namespace = text)
        }),
        Function::new("name", REFINEMENT, |_, args| refine_check(args, |check, text| check.name = text)),
        Function::new(
            "check",
            "kubernetes.authorization.PathCheck#(string) kubernetes.authorization.Decision; \
            kubernetes.authorization.ResourceCheck#(string) kubernetes.authorization.Decision",
            check,
        )
            .costs(charges::authorization, estimates::authorization),
        // Authorizers in this server always return a decision.
        Function::new("errored", "kubernetes.authorization.Decision#() bool", |_, args| {
            decision(&args[0]).map(|_| Value::Bool(false))
        }),
        Function::new("error", "kubernetes.authorization.Decision#() string", |_, args| {
            decision(&args[0]).map(|_| Value::string(""))
        }),
        Function::new("allowed", "kubernetes.authorization.Decision#() bool", |_, args| {
            Ok(Value::Bool(decision(&args[0])?.is_allowed()))
        }),
        Function::new("reason", "kubernetes.authorization.Decision#() string", |_, args| {
            Ok(Value::string(decision(&args[0])?.reason()))
        }),
    ],
)
.with_types(&[
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.Decision",
    "kubernetes.authorization.ResourceCheck",
]);

/// The selectors of authorization checks.
pub(super) static SELECTORS: Library = Library::since(
    31,
    &[
        Function::new("fieldSelector", REFINEMENT, |_, args| {
            refine_check(args, |check, text| check.fields = text.parse().ok())
        })
        .costs(charges::selector, estimates::selector),
        Function::new("labelSelector", REFINEMENT, |_, args| {
            refine_check(args, |check, text| check.labels = text.parse().ok())
        })
        .costs(charges::selector, estimates::selector),
    ],
);

/// The overload of a function that refines a resource check.
const REFINEMENT: &str =
    "kubernetes.authorization.ResourceCheck#(string) kubernetes.authorization.ResourceCheck";

fn decision<'v>(value: &'v Value<'_>) -> Result<&'v Decision, EvalError> {
    match value.as_opaque()? {
        Opaque::Decision(AuthorizationDecision(decision)) => Ok(decision),
        _ => mistyped(),
    }
}

fn group<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Authorizer(context) = args[0].as_opaque()? else { return mistyped() };
    Ok(Value::opaque(Opaque::Group(context.clone(), args[1].as_str()?.to_owned())))
}

fn path<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Authorizer(context) = args[0].as_opaque()? else { return mistyped() };
    match args[1].as_str()? {
        "" => Err(EvalError::new("path must not be empty")),
        path => Ok(Value::opaque(Opaque::Path(context.clone(), path.to_owned()))),
    }
}

fn service_account<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Authorizer(context) = args[0].as_opaque()? else { return mistyped() };
    let (namespace, name) = (args[1].as_str()?, args[2].as_str()?);
    if !validation::dns1123_subdomain(name).is_empty() {
        return Err(EvalError::new("Invalid service account name"));
    }
    if !validation::dns1123_label(namespace).is_empty() {
        return Err(EvalError::new("Invalid service account namespace"));
    }
    let user = UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..UserInfo::default()
    };
    let authorizer = context.authorizer.clone();
    Ok(Value::opaque(Opaque::Authorizer(AuthorizerContext { authorizer, user })))
}

fn resource<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Group(context, group) = args[0].as_opaque()? else { return mistyped() };
    let resource = args[1].as_str()?;
    if resource.is_empty() {
        return Err(EvalError::new("resource must not be empty"));
    }
    Ok(Value::opaque(Opaque::Resource(Box::new(ResourceCheck {
        context: context.clone(),
        group: group.clone(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: String::new(),
        name: String::new(),
        fields: None,
        labels: None,
    }))))
}

/// Adds one refinement to a resource check.
fn refine_check<'a>(args: &[Value<'a>], refine: fn(&mut ResourceCheck, String)) -> Eval<'a> {
    let Opaque::Resource(check) = args[0].as_opaque()? else { return mistyped() };
    let mut check = check.clone();
    refine(&mut check, args[1].as_str()?.to_owned());
    Ok(Value::opaque(Opaque::Resource(check)))
}

fn check<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let verb = args[1].as_str()?;
    let decision = match args[0].as_opaque()? {
        Opaque::Path(context, path) => {
            context.authorizer.authorize(&Attributes::path(&context.user, verb, path))
        }
        Opaque::Resource(check) => check.context.authorizer.authorize(&Attributes {
            version: "*",
            subresource: &check.subresource,
            namespace: &check.namespace,
            name: &check.name,
            field_selector: check.fields.as_ref(),
            label_selector: check.labels.as_ref(),
            ..Attributes::resource(&check.context.user, verb, &check.group, &check.resource)
        }),
        _ => return mistyped(),
    };
    Ok(Value::opaque(Opaque::Decision(AuthorizationDecision(decision))))
}
