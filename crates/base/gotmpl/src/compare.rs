//! The functions `eq`, `ne`, `lt`, `le`, `gt` and `ge`.

use std::cmp::Ordering;

use crate::{error::Message, value::Val};

const BAD_TYPE: &str = "invalid type for comparison";

fn incompatible(a: &Val<'_>, b: &Val<'_>) -> String {
    format!("incompatible types for comparison: {} and {}", a.type_name(), b.type_name())
}

/// Returns `true` if the first value is equal to any of the others.
pub(crate) fn eq(args: &[Val<'_>]) -> Result<bool, Message> {
    let Some((first, others)) = args.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err("missing argument for comparison".into());
    };
    for other in others {
        if equal(first, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn equal(a: &Val<'_>, b: &Val<'_>) -> Result<bool, Message> {
    match (a, b) {
        (Val::Bool(a), Val::Bool(b)) => Ok(a == b),
        (Val::Int(a), Val::Int(b)) => Ok(a == b),
        (Val::Float(a), Val::Float(b)) => Ok(a == b),
        (Val::Text(a), Val::Text(b)) => Ok(a == b),
        (a, b) if a.is_nothing() || b.is_nothing() => Ok(a.is_nothing() && b.is_nothing()),
        (Val::List(_) | Val::Map(_), Val::List(_) | Val::Map(_)) => {
            if a.type_name() != b.type_name() {
                return Err(format!(
                    "non-comparable types {}: {}, {}: {}",
                    crate::format::text(a),
                    a.type_name(),
                    b.type_name(),
                    crate::format::plain(b)
                )
                .into());
            }
            Err(format!("non-comparable type {}: {}", crate::format::text(b), b.type_name()).into())
        }
        _ => Err(incompatible(a, b).into()),
    }
}

/// Compares two values. Returns `None` if one is NaN.
pub(crate) fn order(a: &Val<'_>, b: &Val<'_>) -> Result<Option<Ordering>, Message> {
    let basic = |v: &Val<'_>| !matches!(v, Val::Missing | Val::Nil | Val::List(_) | Val::Map(_));
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => Ok(Some(a.cmp(b))),
        (Val::Float(a), Val::Float(b)) => Ok(a.partial_cmp(b)),
        (Val::Text(a), Val::Text(b)) => Ok(Some(a.cmp(b))),
        (Val::Bool(_), Val::Bool(_)) => Err(BAD_TYPE.into()),
        (a, b) if basic(a) && basic(b) => Err(incompatible(a, b).into()),
        _ => Err(BAD_TYPE.into()),
    }
}
