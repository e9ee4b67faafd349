//! Path elements: the canonical wire form, and paths in messages.

use std::fmt::Write;

use serde_json::{Map, Value};

/// The member name that marks its object's own path as a member of the set.
pub(super) const SELF: &str = ".";

/// The error for a document that is no set of field paths.
#[derive(Debug, thiserror::Error)]
pub enum FieldSetError {
    #[error("fieldsV1: expected an object at {0:?}")]
    NotAnObject(String),
    #[error("fieldsV1: {0:?} is not a path element")]
    BadElement(String),
}

/// Rewrites the JSON in an element (`k:`, `v:`) in canonical form.
pub(super) fn canonical_element(element: String) -> Result<String, FieldSetError> {
    if element == SELF {
        return Ok(element);
    }
    let rewritten = match element.split_once(':') {
        Some(("f", _)) => return Ok(element),
        Some(("k", json)) => serde_json::from_str::<Map<String, Value>>(json)
            .ok()
            .map(|keys| format!("k:{}", Value::Object(keys))),
        Some(("v", json)) => {
            serde_json::from_str::<Value>(json).ok().map(|value| format!("v:{value}"))
        }
        Some(("i", index)) => index.parse::<u32>().ok().map(|index| format!("i:{index}")),
        _ => None,
    };
    rewritten.ok_or(FieldSetError::BadElement(element))
}

/// Formats a path like upstream, such as `.spec.containers[name="a"].image`.
pub(crate) fn display(path: &[&str]) -> String {
    let mut text = String::new();
    for element in path {
        let (kind, rest) = element.split_once(':').unwrap_or(("", element));
        // Writing to a string cannot fail.
        let _ = match kind {
            "f" => write!(text, ".{rest}"),
            "k" => write!(text, "[{}]", display_keys(rest)),
            "v" => write!(text, "[={rest}]"),
            _ => write!(text, "[{rest}]"),
        };
    }
    text
}

fn display_keys(json: &str) -> String {
    let keys: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let pairs: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(",")
}
