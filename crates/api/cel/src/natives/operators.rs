//! Arithmetic, comparison and membership operators.

use std::cmp::Ordering;

use super::{Native, mistyped};
use crate::{
    error::EvalError,
    time,
    value::{Eval, Text, Value, Work, compare, equal},
};

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "_+_" => add,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => modulo,
        "-_" => negate,
        "!_" => not,
        "_==_" => |work, args| Ok(Value::Bool(equal(&args[0], &args[1], work)?)),
        "_!=_" => |work, args| Ok(Value::Bool(!equal(&args[0], &args[1], work)?)),
        "_<_" => |work, args| ordered(work, args, Ordering::is_lt),
        "_<=_" => |work, args| ordered(work, args, Ordering::is_le),
        "_>_" => |work, args| ordered(work, args, Ordering::is_gt),
        "_>=_" => |work, args| ordered(work, args, Ordering::is_ge),
        "@in" => member,
        "size" => size,
        _ => return None,
    })
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

fn add<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
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

fn ordered<'a>(work: &mut Work, args: &[Value<'a>], wanted: fn(Ordering) -> bool) -> Eval<'a> {
    work.spend(1)?;
    // NaN is neither less nor greater than any number.
    Ok(Value::Bool(compare(&args[0], &args[1])?.is_some_and(wanted)))
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
