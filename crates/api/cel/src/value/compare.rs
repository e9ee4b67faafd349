//! Equality and order of values.

use std::{cmp::Ordering, collections::HashMap};

use super::{List, Map, Record, Value, Work, identity};
use crate::{error::EvalError, types::ListKind};

impl<'a> List<'a> {
    pub(crate) fn contains(&self, value: &Value<'a>, work: &mut Work) -> Result<bool, EvalError> {
        for item in self.iter() {
            if equal(&item?, value, work)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Reports whether two values are equal. Values of different types are not, except numbers.
pub(crate) fn equal(a: &Value<'_>, b: &Value<'_>, work: &mut Work) -> Result<bool, EvalError> {
    work.spend(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => {
            work.spend(a.len().min(b.len()) as u64 / 16)?;
            **a == **b
        }
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Opaque(a), Value::Opaque(b)) => a == b,
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => equal(a, b, work)?,
        (Value::List(a), Value::List(b)) => lists_equal(a, b, work)?,
        (Value::Map(a), Value::Map(b)) => maps_equal(a, b, work)?,
        (Value::Object(a), Value::Object(b)) => records_equal(a, b, work)?,
        _ => numbers(a, b) == Some(Ordering::Equal),
    })
}

fn lists_equal(a: &List<'_>, b: &List<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    if *a.kind() != ListKind::Atomic {
        return unordered_equal(a, b, work);
    }
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal(&a?, &b?, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares sets and keyed lists in any order.
fn unordered_equal(a: &List<'_>, b: &List<'_>, work: &mut Work) -> Result<bool, EvalError> {
    let kind = a.kind().clone();
    let mut others = HashMap::with_capacity(b.len());
    for item in b.iter() {
        let item = item?;
        others.insert(identity(&item, &kind)?, item);
    }
    for item in a.iter() {
        let item = item?;
        match others.get(&identity(&item, &kind)?) {
            Some(other) if equal(&item, other, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn maps_equal(a: &Map<'_>, b: &Map<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for entry in a.entries() {
        let (key, value) = entry?;
        match b.get(&key)? {
            Some(other) if equal(&value, &other, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn records_equal(a: &Record<'_>, b: &Record<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.object() != b.object() {
        return Ok(false);
    }
    if let (Record::Composed(_), Record::Composed(_)) = (a, b) {
        return Ok(true);
    }
    for at in 0..a.object().fields.len() {
        match (a.field(at)?, b.field(at)?) {
            (None, None) => {}
            (Some(a), Some(b)) if equal(&a, &b, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Compares numbers of any type. Returns `None` for NaN and for other types.
pub(crate) fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), b) => with_double(whole(b)?, *a).map(Ordering::reverse),
        (a, Value::Double(b)) => with_double(whole(a)?, *b),
        (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

fn whole(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(value) => Some((*value).into()),
        Value::Uint(value) => Some((*value).into()),
        _ => None,
    }
}

/// Compares as doubles, as upstream does for a double within the integer ranges.
fn with_double(whole: i128, double: f64) -> Option<Ordering> {
    if double < i64::MIN as f64 {
        return Some(Ordering::Greater);
    }
    if double > u64::MAX as f64 {
        return Some(Ordering::Less);
    }
    (whole as f64).partial_cmp(&double)
}

/// Compares two values of an ordered type.
pub(crate) fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Option<Ordering>, EvalError> {
    Ok(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Some((**a).cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        (
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
        ) => numbers(a, b),
        _ => return Err(EvalError::no_such_overload()),
    })
}
