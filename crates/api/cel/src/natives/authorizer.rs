//! The `authorizer` library: authorization checks by the server's authorizers.

use api_meta::{Attributes, Decision, UserInfo, validation};

use super::{Native, mistyped};
use crate::{
    error::EvalError,
    opaque::{AuthorizationDecision, AuthorizerContext, Opaque, ResourceCheck},
    value::{Eval, Value, Work},
};

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "path" => path,
        "group" => |_, args| match opaque(&args[0])? {
            Opaque::Authorizer(asks) => {
                Ok(Value::opaque(Opaque::Group(asks.clone(), args[1].as_str()?.to_owned())))
            }
            _ => mistyped(),
        },
        "serviceAccount" => service_account,
        "resource" => resource,
        "subresource" => |_, args| refined(args, |check, text| check.subresource = text),
        "namespace" => |_, args| refined(args, |check, text| check.namespace = text),
        "name" => |_, args| refined(args, |check, text| check.name = text),
        "fieldSelector" => |_, args| refined(args, |check, text| check.fields = text.parse().ok()),
        "labelSelector" => |_, args| refined(args, |check, text| check.labels = text.parse().ok()),
        "check" => check,
        "allowed" => |_, args| Ok(Value::Bool(answer(&args[0])?.is_allowed())),
        "reason" => |_, args| Ok(Value::string(answer(&args[0])?.reason())),
        // Authorizers in this server always return an answer.
        "errored" => |_, args| answer(&args[0]).map(|_| Value::Bool(false)),
        "error" => |_, args| answer(&args[0]).map(|_| Value::string("")),
        _ => return None,
    })
}

fn opaque<'v>(value: &'v Value<'_>) -> Result<&'v Opaque, EvalError> {
    match value {
        Value::Opaque(opaque) => Ok(opaque),
        _ => mistyped(),
    }
}

fn answer<'v>(value: &'v Value<'_>) -> Result<&'v Decision, EvalError> {
    match opaque(value)? {
        Opaque::Decision(AuthorizationDecision(decision)) => Ok(decision),
        _ => mistyped(),
    }
}

fn path<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Authorizer(asks) = opaque(&args[0])? else { return mistyped() };
    match args[1].as_str()? {
        "" => Err(EvalError::new("path must not be empty")),
        path => Ok(Value::opaque(Opaque::Path(asks.clone(), path.to_owned()))),
    }
}

fn service_account<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Authorizer(asks) = opaque(&args[0])? else { return mistyped() };
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
    let authorizer = asks.authorizer.clone();
    Ok(Value::opaque(Opaque::Authorizer(AuthorizerContext { authorizer, user })))
}

fn resource<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Group(asks, group) = opaque(&args[0])? else { return mistyped() };
    let resource = args[1].as_str()?;
    if resource.is_empty() {
        return Err(EvalError::new("resource must not be empty"));
    }
    Ok(Value::opaque(Opaque::Resource(Box::new(ResourceCheck {
        asks: asks.clone(),
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
fn refined<'a>(args: &[Value<'a>], refine: fn(&mut ResourceCheck, String)) -> Eval<'a> {
    let Opaque::Resource(check) = opaque(&args[0])? else { return mistyped() };
    let mut check = check.clone();
    refine(&mut check, args[1].as_str()?.to_owned());
    Ok(Value::opaque(Opaque::Resource(check)))
}

fn check<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let verb = args[1].as_str()?;
    let decision = match opaque(&args[0])? {
        Opaque::Path(asks, path) => {
            asks.authorizer.authorize(&Attributes::path(&asks.user, verb, path))
        }
        Opaque::Resource(check) => check.asks.authorizer.authorize(&Attributes {
            version: "*",
            subresource: &check.subresource,
            namespace: &check.namespace,
            name: &check.name,
            field_selector: check.fields.as_ref(),
            label_selector: check.labels.as_ref(),
            ..Attributes::resource(&check.asks.user, verb, &check.group, &check.resource)
        }),
        _ => return mistyped(),
    };
    Ok(Value::opaque(Opaque::Decision(AuthorizationDecision(decision))))
}
