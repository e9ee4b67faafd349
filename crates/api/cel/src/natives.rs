//! The functions of the standard library and of Kubernetes, resolved by name at compile time.

use crate::{
    error::EvalError,
    value::{Value, Work},
};

mod authorizer;
mod convert;
mod kubernetes;
mod lists;
mod network;
pub(crate) mod operators;
mod optionals;
pub(crate) mod regexes;
mod strings;

/// A function for values of all types of its overloads. It charges its work beyond a constant.
pub(crate) type Native = for<'a> fn(&mut Work, &[Value<'a>]) -> Result<Value<'a>, EvalError>;

/// Returns the function by name or, if known, by overload. The first argument of a method is its receiver.
pub(crate) fn native(name: &str, overload: Option<&str>) -> Option<Native> {
    if overload == Some("list_duration_sum_duration") {
        return Some(lists::sum_of_durations);
    }
    operators::native(name)
        .or_else(|| convert::native(name))
        .or_else(|| strings::native(name))
        .or_else(|| lists::native(name))
        .or_else(|| optionals::native(name))
        .or_else(|| regexes::native(name))
        .or_else(|| network::native(name))
        .or_else(|| kubernetes::native(name))
        .or_else(|| authorizer::native(name))
}

/// Returns the error for arguments that no overload accepts.
pub(crate) fn mistyped<T>() -> Result<T, EvalError> {
    Err(EvalError::no_such_overload())
}
