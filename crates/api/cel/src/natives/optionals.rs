//! Functions for optional values.

use super::operators::planned;
use crate::{
    error::EvalError,
    function::{Function, Library, mistyped},
    value::{Eval, Value, Work},
};

/// The optional values library.
pub(super) static LIBRARY: Library = Library::since(
    28,
    &[
        Function::new("optional.of", "(A) optional(A)", |_, args| {
            Ok(Value::optional(Some(args[0].clone())))
        }),
        Function::new("optional.ofNonZeroValue", "(A) optional(A)", |_, args| {
            Ok(Value::optional(Some(args[0].clone()).filter(|value| !is_zero(value))))
        }),
        Function::new("optional.none", "() optional(A)", |_, _| Ok(Value::Optional(None))),
        Function::new("value", "optional(A)#() A", value),
        Function::new("hasValue", "optional(A)#() bool", |_, args| match &args[0] {
            Value::Optional(value) => Ok(Value::Bool(value.is_some())),
            _ => mistyped(),
        }),
        Function::new("or", "optional(A)#(optional(A)) optional(A)", planned),
        Function::new("orValue", "optional(A)#(A) A", planned),
        Function::new(
            "_[?_]",
            "(list(A), int) optional(A); (optional(list(A)), int) optional(A); \
            (map(A, B), A) optional(B); (optional(map(A, B)), A) optional(B)",
            planned,
        ),
        Function::new(
            "_[_]",
            "(optional(list(A)), int) optional(A); (optional(map(A, B)), A) optional(B)",
            planned,
        ),
        Function::new("last", "list(A)#() optional(A)", |_, args| {
            end(&args[0], |length| length - 1)
        }),
        Function::new("first", "list(A)#() optional(A)", |_, args| end(&args[0], |_| 0)),
        Function::new("optional.unwrap", "(list(optional(A))) list(A)", unwrap),
        Function::new("unwrapOpt", "list(optional(A))#() list(A)", unwrap),
    ],
);

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::Duration(nanos) => *nanos == 0,
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Object(record) => (0..record.object().fields.len()).all(|at| !record.has(at)),
        Value::Optional(value) => value.as_deref().is_none_or(is_zero),
        // Go's zero time is the start of the year 1.
        Value::Timestamp(time) => crate::time::is_first(*time),
        Value::Type(_) | Value::Opaque(_) => false,
    }
}

fn value<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Optional(Some(value)) => Ok((**value).clone()),
        Value::Optional(None) => Err(EvalError::new("optional.none() dereference")),
        _ => mistyped(),
    }
}

fn end<'a>(list: &Value<'a>, at: fn(usize) -> usize) -> Eval<'a> {
    let list = list.as_list()?;
    if list.is_empty() {
        return Ok(Value::Optional(None));
    }
    Ok(Value::optional(Some(list.get(at(list.len()))?)))
}

fn unwrap<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    work.spend(list.len() as u64)?;
    let mut items = Vec::new();
    for item in list.iter() {
        match item? {
            Value::Optional(Some(value)) => items.push((*value).clone()),
            Value::Optional(None) => {}
            other => {
                let shown = crate::format::show(&other);
                return Err(EvalError::Failed(format!("value {shown} is not optional")));
            }
        }
    }
    Ok(Value::list(items))
}
