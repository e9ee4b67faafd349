//! Field errors: what is wrong with an object, where, in upstream's words.

use std::fmt;

use serde_json::Value;

use crate::{go_quote, steps};

/// Where in an object a field is, as in `spec.containers[0].env[HOME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// The path of a field of the object itself; `""` is the object.
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    /// The path of a member: `spec` and `name` are `spec.name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { self.then(&[".", name]) }
    }

    /// Validation names every field that it looks at, and nearly none is wrong: this is not left to `format!`.
    fn then(&self, parts: &[&str]) -> Self {
        steps::spend(1);
        let mut path = String::with_capacity(self.0.len() + 24);
        path.push_str(&self.0);
        parts.iter().for_each(|part| path.push_str(part));
        Self(path)
    }

    /// The path of a list's item, counted from 0: `ports[0]`.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.key(&index.to_string())
    }

    /// The path of a map's entry or of an item by its key: `data[a.txt]`.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.then(&["[", key, "]"])
    }

    /// The text, empty for the object itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Upstream prints a nil path so.
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// How a field is wrong. A client is told as the `reason` of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorType {
    /// The words that begin a message.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    /// The `reason` of a cause in a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

/// One thing wrong with one field. `value` is what was found there; `None` where the message does not show it.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorType,
    pub field: Path,
    pub value: Option<Value>,
    pub detail: String,
}

/// Everything that is wrong; empty where nothing is.
pub type ErrorList = Vec<FieldError>;

impl FieldError {
    fn new(kind: ErrorType, field: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        steps::spend(1);
        Self { kind, field: field.clone(), value, detail: detail.into() }
    }

    /// The field must be there and is not, or is empty.
    pub fn required(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, field, None, detail)
    }

    /// The value breaks a rule, which `detail` says.
    pub fn invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, field, Some(value.into()), detail)
    }

    /// The value is of another type than the schema's.
    pub fn type_invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, field, Some(value.into()), detail)
    }

    /// The value is none of those that are known, which the message lists in this order.
    pub fn not_supported<S: AsRef<str>>(
        field: &Path,
        value: impl Into<Value>,
        supported: &[S],
    ) -> Self {
        let list = supported.iter().map(|s| go_quote(s.as_ref())).collect::<Vec<_>>().join(", ");
        let detail =
            if list.is_empty() { String::new() } else { format!("supported values: {list}") };
        Self::new(ErrorType::NotSupported, field, Some(value.into()), detail)
    }

    /// The field may not be there, or may not be changed, which `detail` says.
    pub fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, field, None, detail)
    }

    /// The value is there a second time.
    pub fn duplicate(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::Duplicate, field, Some(value.into()), "")
    }

    /// The value names something that is not there.
    pub fn not_found(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::NotFound, field, Some(value.into()), "")
    }

    /// The text is too long; it is not repeated.
    pub fn too_long(field: &Path, max_bytes: usize) -> Self {
        Self::new(
            ErrorType::TooLong,
            field,
            None,
            format!("may not be more than {max_bytes} bytes"),
        )
    }

    /// The list or map holds too many.
    pub fn too_many(field: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorType::TooMany,
            field,
            Some(actual.into()),
            format!("must have at most {max} {items}"),
        )
    }

    /// The check itself failed; nobody knows whether the field is right.
    pub fn internal(field: &Path, cause: impl fmt::Display) -> Self {
        Self::new(ErrorType::Internal, field, None, cause.to_string())
    }

    /// The message without the field: what `details.causes[].message` holds.
    pub fn body(&self) -> String {
        let mut out = self.kind.words().to_owned();
        if let Some(value) = &self.value {
            out.push_str(": ");
            match value {
                Value::String(text) => out.push_str(&go_quote(text)),
                other => out.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for FieldError {}

/// Joins errors as upstream's aggregate does: one stands alone, several stand in brackets, repeats are dropped.
pub fn aggregate<'a>(errors: impl IntoIterator<Item = &'a FieldError>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for message in errors.into_iter().map(ToString::to_string) {
        if !seen.contains(&message) {
            seen.push(message);
        }
    }
    match seen.len() {
        1 => seen.swap_remove(0),
        _ => format!("[{}]", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn speaks_as_upstream() {
        let containers = Path::new("spec").child("containers");
        let first = containers.index(0);
        let cases = [
            (FieldError::required(&containers, ""), "spec.containers: Required value"),
            (
                FieldError::invalid(&first.child("name"), "A b", "bad"),
                "spec.containers[0].name: Invalid value: \"A b\": bad",
            ),
            (
                FieldError::invalid(&first.child("port"), json!({"b": 1, "a": [2]}), ""),
                "spec.containers[0].port: Invalid value: {\"a\":[2],\"b\":1}",
            ),
            (
                FieldError::not_supported(
                    &first.child("imagePullPolicy"),
                    "No",
                    &["Always", "Never"],
                ),
                "spec.containers[0].imagePullPolicy: Unsupported value: \"No\": supported values: \"Always\", \"Never\"",
            ),
            (FieldError::forbidden(&first, "no"), "spec.containers[0]: Forbidden: no"),
            (
                FieldError::duplicate(&first.child("env").key("X"), "X"),
                "spec.containers[0].env[X]: Duplicate value: \"X\"",
            ),
            (
                FieldError::too_long(&Path::new("metadata.name"), 253),
                "metadata.name: Too long: may not be more than 253 bytes",
            ),
            (
                FieldError::too_many(&containers, 3, 1),
                "spec.containers: Too many: 3: must have at most 1 item",
            ),
            (
                FieldError::invalid(&containers, Value::Null, ""),
                "spec.containers: Invalid value: null",
            ),
        ];
        for (error, want) in cases {
            assert_eq!(error.to_string(), want);
        }
    }

    #[test]
    fn aggregates_without_repeats() {
        let a = FieldError::required(&Path::new("a"), "");
        let b = FieldError::required(&Path::new("b"), "");
        assert_eq!(aggregate([&a, &a]), "a: Required value");
        assert_eq!(aggregate([&a, &b, &a]), "[a: Required value, b: Required value]");
    }
}
