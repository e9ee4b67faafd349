//! Conversions between types, and accessors of timestamps and durations.

use api_meta::GoDuration;

use crate::{
    cost::{charges, estimates},
    error::EvalError,
    format,
    function::{Function, Library, mistyped},
    time,
    value::{Eval, Value, Work},
};

/// Conversions and accessors of the language.
pub(super) static LIBRARY: Library = Library::since(
    0,
    &[
        Function::new("type", "(A) type(A)", |_, args| Ok(Value::Type(args[0].type_of()))),
        Function::new("dyn", "(A) dyn", |_, args| Ok(args[0].clone())),
        Function::new("bool", "(bool) bool; (string) bool", boolean),
        Function::new("bytes", "(bytes) bytes", bytes),
        Function::new("bytes", "(string) bytes", bytes)
            .overload_costs(charges::read, estimates::string_to_bytes),
        Function::new(
            "double",
            "(double) double; (int) double; (string) double; (uint) double",
            double,
        ),
        Function::new(
            "int",
            "(int) int; (double) int; (duration) int; (string) int; (timestamp) int; (uint) int",
            int,
        ),
        Function::new("uint", "(uint) uint; (double) uint; (int) uint; (string) uint", uint),
        Function::new(
            "string",
            "(string) string; (bool) string; (double) string; (duration) string; (int) string; \
            (timestamp) string; (uint) string",
            string,
        ),
        Function::new("string", "(bytes) string", string)
            .overload_costs(charges::read, estimates::bytes_to_string),
        Function::new(
            "duration",
            "(duration) duration; (int) duration; (string) duration",
            duration,
        ),
        Function::new(
            "timestamp",
            "(timestamp) timestamp; (int) timestamp; (string) timestamp",
            timestamp,
        ),
        Function::new("getFullYear", PART, |_, args| part(args, "getFullYear")),
        Function::new("getMonth", PART, |_, args| part(args, "getMonth")),
        Function::new("getDayOfYear", PART, |_, args| part(args, "getDayOfYear")),
        Function::new("getDayOfMonth", PART, |_, args| part(args, "getDayOfMonth")),
        Function::new("getDate", PART, |_, args| part(args, "getDate")),
        Function::new("getDayOfWeek", PART, |_, args| part(args, "getDayOfWeek")),
        Function::new("getHours", DURATION_PART, |_, args| part(args, "getHours")),
        Function::new("getMinutes", DURATION_PART, |_, args| part(args, "getMinutes")),
        Function::new("getSeconds", DURATION_PART, |_, args| part(args, "getSeconds")),
        Function::new("getMilliseconds", DURATION_PART, |_, args| part(args, "getMilliseconds")),
    ],
);

/// The overloads of an accessor of timestamps, with an optional time zone.
const PART: &str = "timestamp#() int; timestamp#(string) int";
/// The overloads of an accessor of timestamps and durations.
const DURATION_PART: &str = "timestamp#() int; timestamp#(string) int; duration#() int";

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

fn conversion(text: &str, to: &str) -> EvalError {
    EvalError::Failed(format!("type conversion error from '{text}' to '{to}'"))
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

pub(super) fn string<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
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
