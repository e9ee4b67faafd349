//! The actual costs of calls, in upstream's units.

use super::units::{CHECK, LIST, REGEX, STRUCT, TRAVERSAL, scaled};
use crate::{
    opaque::Opaque,
    value::{List, Value},
};

/// A function that returns the cost of a call with these arguments.
pub(crate) type Charge = fn(&[Value<'_>]) -> u64;

fn size(args: &[Value<'_>], at: usize) -> u64 {
    args.get(at).map_or(1, Value::size)
}

pub(crate) fn one(_: &[Value<'_>]) -> u64 {
    1
}

/// Charges a function that reads its first argument.
pub(crate) fn read(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0), TRAVERSAL)
}

/// Charges a function that reads its first argument twice.
pub(crate) fn read_twice(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0).saturating_mul(2), TRAVERSAL)
}

/// Charges a comparison, which stops at the end of the shorter argument.
pub(crate) fn compare(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0).min(size(args, 1)), TRAVERSAL)
}

/// Charges `==`. Comparing opaque values costs one.
pub(crate) fn equal(args: &[Value<'_>]) -> u64 {
    if matches!(args[0], Value::Opaque(_)) { 1 } else { compare(args) }
}

fn search(text: u64, pattern: u64) -> u64 {
    scaled(text.saturating_add(1), TRAVERSAL).saturating_mul(scaled(pattern, REGEX))
}

/// Charges a search for a regular expression.
pub(crate) fn matches(args: &[Value<'_>]) -> u64 {
    search(size(args, 0), size(args, 1))
}

/// Charges the validation by a named format as a search for a regular expression.
pub(crate) fn validate(args: &[Value<'_>]) -> u64 {
    match &args[0] {
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Format(format) => search(size(args, 1), format.regex_size),
            _ => 1,
        },
        _ => 1,
    }
}

pub(crate) fn authorization(_: &[Value<'_>]) -> u64 {
    CHECK
}

/// Charges the parsing of a selector in the second argument.
pub(crate) fn selector(args: &[Value<'_>]) -> u64 {
    let size = size(args, 1);
    LIST + scaled(size, TRAVERSAL) + scaled(scaled(size, 0.5), (LIST + STRUCT) as f64)
}

/// Charges a search for the second argument in the first one.
pub(crate) fn contains_text(args: &[Value<'_>]) -> u64 {
    read(args).saturating_mul(scaled(size(args, 1), TRAVERSAL))
}

pub(crate) fn concatenate_texts(args: &[Value<'_>]) -> u64 {
    scaled(size(args, 0).saturating_add(size(args, 1)), TRAVERSAL)
}

/// Charges an operation on a CIDR and an IP address, which may be a text.
pub(crate) fn contains_ip(args: &[Value<'_>]) -> u64 {
    let parse = match &args[1] {
        Value::String(_) => scaled(size(args, 1), TRAVERSAL),
        _ => 0,
    };
    scaled(size(args, 0) * 2, TRAVERSAL) + parse
}

/// Charges an operation on a CIDR and another CIDR, which may be a text.
pub(crate) fn contains_cidr(args: &[Value<'_>]) -> u64 {
    contains_ip(args) + read(args) + 1
}

pub(crate) fn join(args: &[Value<'_>]) -> u64 {
    let Value::List(list) = &args[0] else { return 1 };
    let separator = args.get(1).map_or(0, Value::size);
    let items: u64 = list.iter().map(|item| item.map_or(0, |item| item.size())).sum();
    let size = items + separator.saturating_mul((list.len() as u64).saturating_sub(1));
    scaled(size.saturating_mul(2), TRAVERSAL)
}

/// Charges the traversal of the whole first argument.
pub(crate) fn walk(args: &[Value<'_>]) -> u64 {
    walk_value(&args[0])
}

fn walk_value(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => list.iter().map(|item| item.map_or(1, |item| walk_value(&item))).sum(),
        Value::Map(map) => map
            .entries()
            .map(|entry| entry.map_or(1, |(key, value)| walk_value(&key) + walk_value(&value)))
            .sum(),
        _ => 1,
    }
}

fn allocate(factor: f64, size: u64) -> u64 {
    (size as f64 * factor) as u64 + 1 + LIST
}

/// Charges the comparison of each item of a list with each other item.
pub(crate) fn sort(args: &[Value<'_>]) -> u64 {
    sort_list(&args[0])
}

/// Charges the comparison of each key in the second argument with each other key.
pub(crate) fn sort_by_keys(args: &[Value<'_>]) -> u64 {
    sort_list(&args[1])
}

fn sort_list(list: &Value<'_>) -> u64 {
    let size = list.size();
    let texts = match list {
        Value::List(list) if !list.is_empty() => has_texts(list),
        _ => false,
    };
    allocate(if texts { 2.0 + TRAVERSAL } else { 2.0 }, size.saturating_mul(size))
}

fn has_texts(list: &List<'_>) -> bool {
    matches!(list.get(0), Ok(Value::String(_) | Value::Bytes(_)))
}

fn int(args: &[Value<'_>], at: usize) -> u64 {
    match args.get(at) {
        Some(Value::Int(value)) => u64::try_from(*value).unwrap_or(0),
        _ => 0,
    }
}

/// Charges `in` for a list in the second argument.
pub(crate) fn contains_item(args: &[Value<'_>]) -> u64 {
    size(args, 1)
}

/// Charges the comparison of each item of a list with each item of another list.
pub(crate) fn compare_items(args: &[Value<'_>]) -> u64 {
    1 + size(args, 0).saturating_mul(size(args, 1))
}

/// Charges the comparison of the items of two lists in both directions.
pub(crate) fn compare_items_twice(args: &[Value<'_>]) -> u64 {
    1 + size(args, 0).saturating_mul(size(args, 1)).saturating_mul(2)
}

/// Charges a function that returns a list with the items of its first argument.
pub(crate) fn copy_list(args: &[Value<'_>]) -> u64 {
    allocate(1.0, size(args, 0))
}

pub(crate) fn slice(args: &[Value<'_>]) -> u64 {
    allocate(1.0, int(args, 2).saturating_sub(int(args, 1)))
}

pub(crate) fn range(args: &[Value<'_>]) -> u64 {
    allocate(1.0, int(args, 0))
}

pub(crate) fn flatten(args: &[Value<'_>]) -> u64 {
    allocate(int(args, 1) as f64, size(args, 0))
}
