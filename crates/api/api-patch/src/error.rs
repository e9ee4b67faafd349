//! The errors of patches, and their HTTP status codes.

use api_meta::BudgetExceeded;
use serde_json::Value;

/// An error of a patch. Messages that clients see are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    #[error("error decoding patch: {0}")]
    Decode(String),
    #[error("The allowed maximum operations in a JSON patch is {max}, got {got}")]
    TooManyOperations { max: usize, got: usize },
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {max}"
    )]
    CopiesTooMuch { copied: usize, max: usize },
    /// A limit that upstream lacks: an operation at the start of a long list moves all later items.
    #[error(
        "Unable to complete the patch, its operations move {moved} items of lists, exceeding the limit {max}"
    )]
    MovesTooMuch { moved: usize, max: usize },
    #[error(transparent)]
    Exceeded(#[from] BudgetExceeded),
    /// A failed `test` of a JSON patch. Upstream's answer is [`PatchError::REJECTED`], as for other operations.
    #[error("testing value failed")]
    TestFailed,
    /// A failed operation of a JSON patch. Upstream's answer is [`PatchError::REJECTED`].
    #[error("{0}")]
    Operation(String),
    #[error("Invalid JSON Patch")]
    InvalidMergePatch,
    #[error("invalid JSON document")]
    InvalidDocument,
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NotMap(&'static str),
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    #[error("expected a {want}, but received a {got}")]
    WrongType { want: &'static str, got: &'static str },
    #[error("unable to find a list for the json field {0:?}")]
    NoSuchList(String),
    #[error("no elements in any of the given slices")]
    NoElements,
    #[error("The order in patch list:\n{patch}\n doesn't match {directive} list:\n{order}\n")]
    Order { patch: String, directive: String, order: String },
    #[error("map: {map} does not contain declared merge key: {key}")]
    NoMergeKey { map: String, key: String },
    #[error("cannot merge lists without merge key for {0}")]
    UndeclaredMergeKey(String),
    #[error("unknown patch type: {directive} in map: {map}")]
    UnknownDirective { directive: String, map: String },
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirectiveInList,
    #[error("list element types are not identical: {0}")]
    MixedList(String),
}

impl PatchError {
    /// The message of upstream's 422 answers, which does not name the cause.
    pub const REJECTED: &'static str =
        "the server rejected our request due to an error in our request";

    /// Returns the error for a value of another Go type than `want`.
    pub(crate) fn wrong_type(want: &'static str, value: &Value) -> Self {
        let got = match value {
            Value::Null => "%!s(<nil>)",
            Value::Bool(_) => "bool",
            Value::Number(number) if number.is_f64() => "float64",
            Value::Number(_) => "int64",
            Value::String(_) => "string",
            Value::Array(_) => "[]interface {}",
            Value::Object(_) => "map[string]interface {}",
        };
        Self::WrongType { want, got }
    }

    /// Returns upstream's HTTP status for the error.
    pub fn code(&self) -> u16 {
        match self {
            Self::Decode(_)
            | Self::InvalidMergePatch
            | Self::InvalidDocument
            | Self::NotMap(_)
            | Self::PrimitiveList
            | Self::RetainKeys
            | Self::SetElementOrder => 400,
            Self::TooManyOperations { .. } | Self::MovesTooMuch { .. } | Self::Exceeded(_) => 413,
            Self::Operation(_)
            | Self::TestFailed
            | Self::CopiesTooMuch { .. }
            | Self::ListOfLists => 422,
            Self::Order { .. }
            | Self::NoMergeKey { .. }
            | Self::UndeclaredMergeKey(_)
            | Self::WrongType { .. }
            | Self::NoSuchList(_)
            | Self::NoElements
            | Self::UnknownDirective { .. }
            | Self::MergeDirectiveInList
            | Self::MixedList(_) => 500,
        }
    }
}

/// Returns the JSON type of a value, as Go's decoder names it.
pub fn json_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Formats a value in Go's syntax for upstream's messages, such as `map[string]interface {}{"a":1}`.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => api_meta::go_quote(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let pair =
                |key: &str, value| format!("{}:{}", api_meta::go_quote(key), go_syntax(value));
            let pairs: Vec<String> = map.iter().map(|(key, value)| pair(key, value)).collect();
            format!("map[string]interface {{}}{{{}}}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

/// Formats a value as Go prints it for upstream's messages, such as `map[image:nginx name:web]`.
pub fn go_print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_print).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", go_print(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}
