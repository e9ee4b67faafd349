//! What can be wrong with a patch, and the HTTP code that each mistake answers with.

use api_meta::Exceeded;
use serde_json::Value;

/// Why a patch could not be applied. The texts are upstream's where clients see them.
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
    /// Not a bound of upstream's: an operation at the head of a long list moves all that follows.
    #[error(
        "Unable to complete the patch, its operations move {moved} items of lists, exceeding the limit {max}"
    )]
    MovesTooMuch { moved: usize, max: usize },
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// A `test` of a JSON patch. Upstream hides the cause behind [`PatchError::REJECTED`], as that of other operations.
    #[error("testing value failed")]
    TestFailed,
    /// An operation of a JSON patch that does not apply. Upstream hides the cause behind [`PatchError::REJECTED`].
    #[error("{0}")]
    Operation(String),
    #[error("Invalid JSON Patch")]
    InvalidMergePatch,
    #[error("invalid JSON document")]
    InvalidDocument,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
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
    /// The message of upstream's 422 answers, which does not say what was wrong.
    pub const REJECTED: &'static str =
        "the server rejected our request due to an error in our request";

    /// The HTTP status that upstream answers with.
    pub fn code(&self) -> u16 {
        match self {
            Self::Decode(_)
            | Self::InvalidMergePatch
            | Self::InvalidDocument
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
            | Self::UnknownDirective { .. }
            | Self::MergeDirectiveInList
            | Self::MixedList(_) => 500,
        }
    }
}

/// A value in Go's syntax, which some of upstream's messages show: `map[string]interface {}{"a":1}`.
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

/// A value as Go prints it, which upstream's messages show: `map[image:nginx name:web]`.
pub(crate) fn go_print(value: &Value) -> String {
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
