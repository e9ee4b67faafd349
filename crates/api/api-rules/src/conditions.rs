//! Conditions in the status of any object.

use api_meta::Tree as _;
use serde_json::Value;

/// Returns a condition of an object, or `None`.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.items("status.conditions").iter().find(|c| c.text("type") == kind)
}

/// Reports whether a condition of an object is true.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| c.text("status") == "True")
}
