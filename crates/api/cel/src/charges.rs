//! The actual costs of calls, in upstream's units.

use crate::{
    opaque::Opaque,
    value::{List, Value},
};

/// The cost per unit of length of traversing a string.
pub(crate) const TRAVERSAL: f64 = 0.1;
/// The cost per unit of length of a regular expression.
pub(crate) const REGEX: f64 = 0.25;
pub(crate) const LIST: u64 = 10;
pub(crate) const MAP: u64 = 30;
pub(crate) const STRUCT: u64 = 40;
/// The cost of an authorization check, which allows two checks per expression.
pub(crate) const CHECK: u64 = 350_000;

/// A function that returns the cost of a call with these arguments.
pub(crate) type Charge = fn(&[Value<'_>]) -> u64;

fn size(args: &[Value<'_>], at: usize) -> u64 {
    args.get(at).map_or(1, Value::size)
}

pub(crate) fn scaled(size: u64, by: f64) -> u64 {
    // The cast saturates for values over the maximum.
    (size as f64 * by).ceil() as u64
}

fn traversal(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0), TRAVERSAL)
}

fn twice(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0).saturating_mul(2), TRAVERSAL)
}

fn shorter(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0).min(size(args, 1)), TRAVERSAL)
}

fn one(_: &[Value<'_>]) -> u64 {
    1
}

/// Comparing opaque values costs one.
fn equality(args: &[Value<'_>]) -> u64 {
    if matches!(args[0], Value::Opaque(_)) { 1 } else { shorter(args) }
}

fn pattern(text: u64, pattern: u64) -> u64 {
    scaled(text.saturating_add(1), TRAVERSAL).saturating_mul(scaled(pattern, REGEX))
}

fn network(args: &[Value<'_>]) -> u64 {
    let parse = match &args[1] {
        Value::String(_) => scaled(size(args, 1), TRAVERSAL),
        _ => 0,
    };
    scaled(size(args, 0) * 2, TRAVERSAL) + parse
}

fn joined(args: &[Value<'_>]) -> u64 {
    let Value::List(list) = &args[0] else { return 1 };
    let separator = args.get(1).map_or(0, Value::size);
    let items: u64 = list.iter().map(|item| item.map_or(0, |item| item.size())).sum();
    let size = items + separator.saturating_mul((list.len() as u64).saturating_sub(1));
    scaled(size.saturating_mul(2), TRAVERSAL)
}

/// Returns the cost of traversing a whole value.
fn walk(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => list.iter().map(|item| item.map_or(1, |item| walk(&item))).sum(),
        Value::Map(map) => map
            .entries()
            .map(|entry| entry.map_or(1, |(key, value)| walk(&key) + walk(&value)))
            .sum(),
        _ => 1,
    }
}

fn allocating(factor: f64, size: u64) -> u64 {
    (size as f64 * factor) as u64 + 1 + LIST
}

/// Returns the cost of comparing every item with every other, as sorting and deduplication do.
fn against_itself(list: &Value<'_>) -> u64 {
    let size = list.size();
    let texts = match list {
        Value::List(list) if !list.is_empty() => first_is_text(list),
        _ => false,
    };
    allocating(if texts { 2.0 + TRAVERSAL } else { 2.0 }, size.saturating_mul(size))
}

fn first_is_text(list: &List<'_>) -> bool {
    matches!(list.get(0), Ok(Value::String(_) | Value::Bytes(_)))
}

fn int(args: &[Value<'_>], at: usize) -> u64 {
    match args.get(at) {
        Some(Value::Int(value)) => u64::try_from(*value).unwrap_or(0),
        _ => 0,
    }
}

/// Returns the cost function of a function or, if known, of a single overload.
pub(crate) fn charge(function: &str, overload: Option<&str>) -> Charge {
    match function {
        "check" => return |_| CHECK,
        "fieldSelector" | "labelSelector" => {
            return |args| {
                let size = size(args, 1);
                LIST + scaled(size, TRAVERSAL) + scaled(scaled(size, 0.5), (LIST + STRUCT) as f64)
            };
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            return |args| walk(&args[0]);
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => {
            return traversal;
        }
        "ip" => {
            return |args| if matches!(args[0], Value::String(_)) { traversal(args) } else { 1 };
        }
        "replace" | "split" | "ip.isCanonical" => return twice,
        "join" => return joined,
        "find" | "findAll" => return |args| pattern(size(args, 0), size(args, 1)),
        "containsIP" => return network,
        "containsCIDR" => {
            return |args| network(args) + scaled(size(args, 0), TRAVERSAL) + 1;
        }
        "validate" => return validation,
        "_==_" => return equality,
        "_!=_" => return shorter,
        _ => {}
    }
    by_overload(overload.unwrap_or_default())
}

fn validation(args: &[Value<'_>]) -> u64 {
    match &args[0] {
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Format(format) => pattern(size(args, 1), format.regex_size),
            _ => 1,
        },
        _ => 1,
    }
}

fn by_overload(overload: &str) -> Charge {
    match overload {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string"
        | "strings_quote" | "string_format" => traversal,
        "in_list" => |args| size(args, 1),
        "add_string" | "add_bytes" => {
            |args| scaled(size(args, 0).saturating_add(size(args, 1)), TRAVERSAL)
        }
        "matches_string" => |args| pattern(size(args, 0), size(args, 1)),
        "contains_string" => {
            |args| traversal(args).saturating_mul(scaled(size(args, 1), TRAVERSAL))
        }
        "list_slice" => |args| allocating(1.0, int(args, 2).saturating_sub(int(args, 1))),
        "list_flatten" => |args| allocating(1.0, size(args, 0)),
        "list_flatten_int" => |args| allocating(int(args, 1) as f64, size(args, 0)),
        "lists_range" => |args| allocating(1.0, int(args, 0)),
        "list_reverse" => |args| allocating(1.0, size(args, 0)),
        "list_distinct" => |args| against_itself(&args[0]),
        "list_sets_contains_list" | "list_sets_intersects_list" => {
            |args| 1 + size(args, 0).saturating_mul(size(args, 1))
        }
        "list_sets_equivalent_list" => {
            |args| 1 + size(args, 0).saturating_mul(size(args, 1)).saturating_mul(2)
        }
        _ if ["less_", "greater_"].iter().any(|name| overload.starts_with(name))
            && ["_string", "_bytes"].iter().any(|name| overload.ends_with(name)) =>
        {
            shorter
        }
        _ if overload.ends_with("_sort") => |args| against_itself(&args[0]),
        _ if overload.ends_with("_sortByAssociatedKeys") => |args| against_itself(&args[1]),
        _ => one,
    }
}
