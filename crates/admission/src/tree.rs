//! Reading and changing object trees. What is absent reads as empty; types are those of the schema, since an object is
//! decoded by it before it gets here.

use api_meta::{at_pointer, at_pointer_mut};
use serde_json::{Map, Value};

/// The text at a JSON pointer, empty where there is none.
pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    at_pointer(value, pointer).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn flag(value: &Value, pointer: &str) -> Option<bool> {
    at_pointer(value, pointer).and_then(Value::as_bool)
}

pub(crate) fn integer(value: &Value, pointer: &str) -> Option<i64> {
    at_pointer(value, pointer).and_then(Value::as_i64)
}

/// The entries of a list.
pub(crate) fn items<'v>(
    value: &'v Value,
    pointer: &str,
) -> impl DoubleEndedIterator<Item = &'v Value> + use<'v> {
    at_pointer(value, pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The entries of a list, to be changed. Unlike indexing, it makes nothing where there is none.
pub(crate) fn items_mut<'v>(
    value: &'v mut Value,
    pointer: &str,
) -> impl Iterator<Item = &'v mut Value> + use<'v> {
    at_pointer_mut(value, pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The entries of a map.
pub(crate) fn entries<'v>(
    value: &'v Value,
    pointer: &str,
) -> impl Iterator<Item = (&'v str, &'v Value)> + use<'v> {
    at_pointer(value, pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.as_str(), v))
}

pub(crate) fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["annotations"][key].as_str()
}

pub(crate) fn is_set(value: &Value, pointer: &str) -> bool {
    at_pointer(value, pointer).is_some_and(|v| !v.is_null())
}

fn child<'v>(value: &'v mut Value, key: &str) -> &'v mut Value {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(members) => members.entry(key).or_insert(Value::Null),
        _ => unreachable!("it was just made an object"),
    }
}

/// The value at a path of keys, made null where it is absent.
pub(crate) fn at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Value {
    path.iter().fold(value, |value, key| child(value, key))
}

/// The list at a path of keys, made empty where it is absent.
pub(crate) fn list_at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Vec<Value> {
    let value = at(value, path);
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("it was just made an array"),
    }
}
