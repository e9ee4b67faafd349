//! Arithmetic, comparison and membership operators.

use std::cmp::Ordering;

use crate::{
    cost::{charges, estimates},
    error::EvalError,
    function::{Function, Library, mistyped},
    time,
    value::{
        Eval, Text, Value, Work,
        compare::{compare, equal},
    },
};

/// The operators of the language.
pub(super) static LIBRARY: Library = Library::since(
    0,
    &[
        Function::new("_?_:_", "(bool, A, A) A", planned),
        Function::new("_&&_", "(bool, bool) bool", planned),
        Function::new("_||_", "(bool, bool) bool", planned),
        Function::new("_[_]", "(list(A), int) A; (map(A, B), A) B", planned),
        Function::new("!_", "(bool) bool", not),
        Function::new("_==_", "(A, A) bool", |work, args| {
            Ok(Value::Bool(equal(&args[0], &args[1], work)?))
        })
        .costs(charges::equal, estimates::equal),
        Function::new("_!=_", "(A, A) bool", |work, args| {
            Ok(Value::Bool(!equal(&args[0], &args[1], work)?))
        })
        .costs(charges::compare, estimates::compare),
        Function::new("_+_", "(bytes, bytes) bytes; (string, string) string", add)
            .overload_costs(charges::concatenate_texts, estimates::concatenate_texts),
        Function::new("_+_", "(list(A), list(A)) list(A)", add)
            .costs(charges::one, estimates::concatenate_lists),
        Function::new(
            "_+_",
            "(double, double) double; (duration, duration) duration; (int, int) int; (uint, uint) uint; \
            (duration, timestamp) timestamp; (timestamp, duration) timestamp",
            add,
        ),
        Function::new(
            "_-_",
            "(double, double) double; (duration, duration) duration; (int, int) int; (uint, uint) uint; \
            (timestamp, duration) timestamp; (timestamp, timestamp) duration",
            subtract,
        ),
        Function::new(
            "_*_",
            "(double, double) double; (int, int) int; (uint, uint) uint",
            multiply,
        ),
        Function::new("_/_", "(double, double) double; (int, int) int; (uint, uint) uint", divide),
        Function::new("_%_", "(int, int) int; (uint, uint) uint", modulo),
        Function::new("-_", "(double) double; (int) int", negate),
        Function::new("_<_", ORDERED, less),
        Function::new("_<_", "(text, text) bool", less)
            .overload_costs(charges::compare, estimates::compare),
        Function::new("_<=_", ORDERED, less_equal),
        Function::new("_<=_", "(text, text) bool", less_equal)
            .overload_costs(charges::compare, estimates::compare),
        Function::new("_>_", ORDERED, greater),
        Function::new("_>_", "(text, text) bool", greater)
            .overload_costs(charges::compare, estimates::compare),
        Function::new("_>=_", ORDERED, greater_equal),
        Function::new("_>=_", "(text, text) bool", greater_equal)
            .overload_costs(charges::compare, estimates::compare),
        Function::new("@in", "(A, list(A)) bool", member)
            .overload_costs(charges::contains_item, estimates::contains_item),
        Function::new("@in", "(A, map(A, B)) bool", member),
        Function::new(
            "size",
            "(bytes) int; bytes#() int; (list(A)) int; list(A)#() int; (map(A, B)) int; \
            map(A, B)#() int; (string) int; string#() int",
            size,
        ),
    ],
);

/// The overloads of the ordering operators besides those for texts.
const ORDERED: &str = "(scalar, scalar) bool; (int, double) bool; (int, uint) bool; (uint, double) bool; \
    (uint, int) bool; (double, int) bool; (double, uint) bool";

/// Stands for an operator that a program evaluates itself, because it does not always evaluate all operands.
pub(super) fn planned<'a>(_: &mut Work, _: &[Value<'a>]) -> Eval<'a> {
    mistyped()
}

fn less<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    ordered(work, args, Ordering::is_lt)
}

fn less_equal<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    ordered(work, args, Ordering::is_le)
}

fn greater<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    ordered(work, args, Ordering::is_gt)
}

fn greater_equal<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    ordered(work, args, Ordering::is_ge)
}

fn int<'a>(value: Option<i64>) -> Eval<'a> {
    value.map(Value::Int).ok_or_else(|| EvalError::new("integer overflow"))
}

fn uint<'a>(value: Option<u64>) -> Eval<'a> {
    value.map(Value::Uint).ok_or_else(|| EvalError::new("unsigned integer overflow"))
}

fn duration<'a>(value: Option<i64>) -> Eval<'a> {
    value.map(Value::Duration).ok_or_else(|| EvalError::new("duration overflow"))
}

pub(super) fn add<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => int(a.checked_add(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_add(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => concat(work, a, b),
        (Value::Bytes(a), Value::Bytes(b)) => {
            work.spend((a.len() + b.len()) as u64)?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => Ok(Value::List(a.join(b)?)),
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_add(*b)),
        (Value::Timestamp(time), Value::Duration(by))
        | (Value::Duration(by), Value::Timestamp(time)) => {
            time::moved(*time, i128::from(*by)).map(Value::Timestamp)
        }
        _ => mistyped(),
    }
}

fn concat<'a>(work: &mut Work, a: &Text<'a>, b: &Text<'a>) -> Eval<'a> {
    work.spend((a.len() + b.len()) as u64)?;
    Ok(Value::string([&**a, &**b].concat()))
}

fn subtract<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => int(a.checked_sub(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_sub(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_sub(*b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            duration(i64::try_from(time::total(*a) - time::total(*b)).ok())
        }
        (Value::Timestamp(time), Value::Duration(by)) => {
            time::moved(*time, -i128::from(*by)).map(Value::Timestamp)
        }
        _ => mistyped(),
    }
}

fn multiply<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => int(a.checked_mul(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_mul(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => mistyped(),
    }
}

fn divide<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match (&args[0], &args[1]) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvalError::new("division by zero"))
        }
        (Value::Int(a), Value::Int(b)) => int(a.checked_div(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_div(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => mistyped(),
    }
}

fn modulo<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match (&args[0], &args[1]) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvalError::new("modulus by zero"))
        }
        (Value::Int(a), Value::Int(b)) => int(a.checked_rem(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_rem(*b)),
        _ => mistyped(),
    }
}

fn negate<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Int(value) => int(value.checked_neg()),
        Value::Double(value) => Ok(Value::Double(-value)),
        Value::Duration(value) => duration(value.checked_neg()),
        _ => mistyped(),
    }
}

fn not<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Bool(value) => Ok(Value::Bool(!value)),
        _ => mistyped(),
    }
}

fn ordered<'a>(work: &mut Work, args: &[Value<'a>], test: fn(Ordering) -> bool) -> Eval<'a> {
    work.spend(1)?;
    // NaN is neither less nor greater than any number.
    Ok(Value::Bool(compare(&args[0], &args[1])?.is_some_and(test)))
}

fn member<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[1] {
        Value::List(list) => Ok(Value::Bool(list.contains(&args[0], work)?)),
        Value::Map(map) => Ok(Value::Bool(map.contains(&args[0])?)),
        _ => mistyped(),
    }
}

fn size<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::String(text) => work.spend(text.len() as u64 / 16)?,
        Value::Bytes(_) | Value::List(_) | Value::Map(_) => {}
        _ => return mistyped(),
    }
    Ok(Value::Int(i64::try_from(args[0].size()).unwrap_or(i64::MAX)))
}
