//! The functions that expressions call, found by name when an expression is compiled.

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

/// A function over values of any of the types that it has overloads for. What it does beyond a constant is spent.
pub(crate) type Native = for<'a> fn(&mut Work, &[Value<'a>]) -> Result<Value<'a>, EvalError>;

/// The function of a name, or of the one overload that a call comes to; a method's receiver is its first argument.
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

/// What is called with values that no overload takes.
pub(crate) fn mistyped<T>() -> Result<T, EvalError> {
    Err(EvalError::no_such_overload())
}
