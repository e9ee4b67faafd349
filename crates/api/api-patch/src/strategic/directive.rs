//! The directives of a patch, and its values without directives.

use serde_json::{Map, Value};

use crate::error::{PatchError, go_print};

pub(super) const PATCH: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
pub(super) const SET_ELEMENT_ORDER: &str = "$setElementOrder";

/// Returns a patch's value for a place without an original value of the same type: without nulls, and without maps that
/// have a `$patch`. Other directives are kept, and reported as unknown fields when the object is decoded.
pub(super) fn clean(patch: &Value) -> Option<Value> {
    api_meta::steps::spend(1);
    match patch {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Some(kept.filter_map(|(name, value)| Some((name.clone(), clean(value)?))).collect())
        }
        Value::Array(items) => Some(items.iter().filter_map(clean).collect()),
        scalar => Some(scalar.clone()),
    }
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
