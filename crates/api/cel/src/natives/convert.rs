//! Conversions between types, and accessors of timestamps and durations.

use api_meta::GoDuration;

use super::{Native, mistyped};
use crate::{
    error::EvalError,
    format, time,
    value::{Eval, Value, Work},
};

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "bool" => boolean,
        "int" => int,
        "uint" => uint,
        "double" => double,
        "string" => string,
        "bytes" => bytes,
        "timestamp" => timestamp,
        "duration" => duration,
        "dyn" => |_, args| Ok(args[0].clone()),
        "type" => |_, args| Ok(Value::Type(args[0].type_of())),
        "getFullYear" => |_, args| part(args, "getFullYear"),
        "getMonth" => |_, args| part(args, "getMonth"),
        "getDayOfYear" => |_, args| part(args, "getDayOfYear"),
        "getDayOfMonth" => |_, args| part(args, "getDayOfMonth"),
        "getDate" => |_, args| part(args, "getDate"),
        "getDayOfWeek" => |_, args| part(args, "getDayOfWeek"),
        "getHours" => |_, args| part(args, "getHours"),
        "getMinutes" => |_, args| part(args, "getMinutes"),
        "getSeconds" => |_, args| part(args, "getSeconds"),
        "getMilliseconds" => |_, args| part(args, "getMilliseconds"),
        _ => return None,
    })
}

fn boolean<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            other => Err(conversion(other, "bool")),
        },
        _ => mistyped(),
    }
}

fn conversion(given: &str, to: &str) -> EvalError {
    EvalError::Failed(format!("type conversion error from '{given}' to '{to}'"))
}

fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}

fn int<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let value = match &args[0] {
        Value::Int(value) => *value,
        Value::Uint(value) => i64::try_from(*value).map_err(|_| overflow())?,
        Value::Double(value) if *value > i64::MIN as f64 && *value < i64::MAX as f64 => {
            *value as i64
        }
        Value::Double(_) => return Err(overflow()),
        Value::String(text) => text.parse().map_err(|_| conversion(text, "int"))?,
        Value::Timestamp(time) => time.unix(),
        Value::Duration(nanos) => *nanos,
        _ => return mistyped(),
    };
    Ok(Value::Int(value))
}

fn uint<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let overflow = || EvalError::new("unsigned integer overflow");
    let value = match &args[0] {
        Value::Uint(value) => *value,
        Value::Int(value) => u64::try_from(*value).map_err(|_| overflow())?,
        Value::Double(value) if *value >= 0.0 && *value < u64::MAX as f64 => *value as u64,
        Value::Double(_) => return Err(overflow()),
        Value::String(text) => text.parse().map_err(|_| conversion(text, "uint"))?,
        _ => return mistyped(),
    };
    Ok(Value::Uint(value))
}

fn double<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let value = match &args[0] {
        Value::Double(value) => *value,
        Value::Int(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::String(text) => text.parse().map_err(|_| conversion(text, "double"))?,
        _ => return mistyped(),
    };
    Ok(Value::Double(value))
}

fn string<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    Ok(match &args[0] {
        Value::String(_) => args[0].clone(),
        Value::Bool(value) => Value::string(value.to_string()),
        Value::Int(value) => Value::string(value.to_string()),
        Value::Uint(value) => Value::string(value.to_string()),
        Value::Double(value) => Value::string(format::double(*value)),
        Value::Bytes(bytes) => {
            work.spend(bytes.len() as u64)?;
            let text = std::str::from_utf8(bytes)
                .map_err(|_| EvalError::new("invalid UTF-8 in bytes, cannot convert to string"))?;
            Value::string(text)
        }
        Value::Timestamp(time) => Value::string(time.exact()),
        Value::Duration(nanos) => Value::string(time::show_duration(*nanos)),
        Value::Opaque(opaque) => Value::string(opaque.to_string()),
        _ => return mistyped(),
    })
}

fn bytes<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Bytes(_) => Ok(args[0].clone()),
        Value::String(text) => {
            work.spend(text.len() as u64)?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => mistyped(),
    }
}

fn timestamp<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Timestamp(_) => Ok(args[0].clone()),
        Value::Int(seconds) => time::timestamp(*seconds, 0).map(Value::Timestamp),
        Value::String(text) => time::parse_timestamp(text)
            .map(Value::Timestamp)
            .ok_or_else(|| conversion(text, "google.protobuf.Timestamp")),
        _ => mistyped(),
    }
}

fn duration<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    match &args[0] {
        Value::Duration(_) => Ok(args[0].clone()),
        Value::Int(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => text
            .parse::<GoDuration>()
            .map(|duration| Value::Duration(duration.nanos()))
            .map_err(|_| conversion(text, "google.protobuf.Duration")),
        _ => mistyped(),
    }
}

fn part<'a>(args: &[Value<'a>], method: &str) -> Eval<'a> {
    match &args[0] {
        Value::Timestamp(time) => {
            let zone = args.get(1).map(Value::as_str).transpose()?;
            time::part(*time, zone, method).map(Value::Int)
        }
        // For a duration, the total in this unit.
        Value::Duration(nanos) => Ok(Value::Int(match method {
            "getHours" => nanos / 3_600_000_000_000,
            "getMinutes" => nanos / 60_000_000_000,
            "getSeconds" => nanos / 1_000_000_000,
            "getMilliseconds" => nanos / 1_000_000,
            _ => return mistyped(),
        })),
        _ => mistyped(),
    }
}
