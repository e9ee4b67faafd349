//! The directives of a patch, and its values without directives.

use serde_json::{Map, Value};

use crate::error::{PatchError, go_print};

pub(super) const PATCH: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
pub(super) const SET_ELEMENT_ORDER: &str = "$setElementOrder/";

pub(super) fn is_directive(name: &str) -> bool {
    name == PATCH
        || name == RETAIN_KEYS
        || name.starts_with(DELETE_FROM_LIST)
        || name.starts_with(SET_ELEMENT_ORDER)
}

/// Returns a patch's value without nulls and directives, for a place without an original value.
pub(super) fn clean(patch: &Value) -> Option<Value> {
    api_meta::steps::spend(1);
    match patch {
        Value::Null => None,
        Value::Object(map) => match map.get(PATCH).and_then(Value::as_str) {
            Some("delete") => None,
            _ => Some(Value::Object(clean_map(map))),
        },
        Value::Array(items) => Some(Value::Array(
            items.iter().filter(|item| !is_special(item)).filter_map(clean).collect(),
        )),
        scalar => Some(scalar.clone()),
    }
}

pub(super) fn clean_map(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(name, _)| !is_directive(name))
        .filter_map(|(name, value)| Some((name.clone(), clean(value)?)))
        .collect()
}

/// Reports whether a list item is a directive.
pub(super) fn is_special(item: &Value) -> bool {
    item.get(PATCH).is_some()
}

pub(super) fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> PatchError {
    PatchError::UnknownDirective {
        directive: directive.as_str().map_or_else(|| directive.to_string(), str::to_owned),
        map: go_print(&Value::Object(map.clone())),
    }
}
