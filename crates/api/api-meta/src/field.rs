//! Field errors with upstream's messages: the field, the kind of error and the value.

use std::{
    cmp::Ordering,
    collections::HashSet,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
};

use serde_json::Value;

use crate::{quote::go_quote, steps};

/// The path of a field in an object, such as `spec.containers[0].env[HOME]`.
#[derive(Clone)]
pub struct Path(PathText);

/// The length in bytes up to which a path needs no allocation. Validation builds the path of every field but rarely
/// reports one.
const SHORT: usize = 54;

#[derive(Clone)]
enum PathText {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(String),
}

impl PathText {
    fn as_str(&self) -> &str {
        match self {
            Self::Short { length, bytes } => {
                let text = bytes.get(..usize::from(*length)).unwrap_or_default();
                // It consists of whole strings.
                std::str::from_utf8(text).unwrap_or_default()
            }
            Self::Long(text) => text,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Short { length, .. } => *length == 0,
            Self::Long(text) => text.is_empty(),
        }
    }

    fn push(&mut self, part: &str) {
        let long = match self {
            Self::Short { length, bytes } => {
                let end = usize::from(*length) + part.len();
                if let Some(free) = bytes.get_mut(usize::from(*length)..end) {
                    free.copy_from_slice(part.as_bytes());
                    *length = end as u8;
                    return;
                }
                let mut long = String::with_capacity(end + 24);
                long.push_str(self.as_str());
                long
            }
            Self::Long(text) => return text.push_str(part),
        };
        *self = Self::Long(long);
        self.push(part);
    }

    /// Returns a copy that can be extended without another allocation, unless the extension is long.
    fn to_extend(&self) -> Self {
        let Self::Long(text) = self else { return self.clone() };
        let mut copy = String::with_capacity(text.len() + 24);
        copy.push_str(text);
        Self::Long(copy)
    }
}

impl Path {
    /// Creates the path of a top-level field; `""` is the object itself.
    pub fn new(root: &str) -> Self {
        let mut text = PathText::Short { length: 0, bytes: [0; SHORT] };
        text.push(root);
        Self(text)
    }

    /// Returns the path of a member: `spec` and `name` give `spec.name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self::new(name) } else { self.then(&[".", name]) }
    }

    fn then(&self, parts: &[&str]) -> Self {
        steps::spend(1);
        let mut text = self.0.to_extend();
        parts.iter().for_each(|part| text.push(part));
        Self(text)
    }

    /// Returns the path of a list item, counted from 0: `ports[0]`.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        // Most indexes have one digit, and formatting takes several times as long.
        const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        if let Some(digit) = DIGITS.get(index) {
            return self.then(&["[", digit, "]"]);
        }
        steps::spend(1);
        let mut path = Self(self.0.to_extend());
        // Writing to a path does not fail.
        let _ = fmt::Write::write_fmt(&mut path.0, format_args!("[{index}]"));
        path
    }

    /// Returns the path of a map entry, or of an item by its key: `data[a.txt]`.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.then(&["[", key, "]"])
    }

    /// Returns the path as text; empty for the object itself.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Write for PathText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

impl Default for Path {
    fn default() -> Self {
        Self::new("")
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Path").field(&self.as_str()).finish()
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Path {}

impl Hash for Path {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Ord for Path {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for Path {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Upstream prints a nil path like this.
        let text = self.as_str();
        f.write_str(if text.is_empty() { "<nil>" } else { text })
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// The kind of a field error. Clients see it as the `reason` of a cause.
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
    /// Returns the words that start the message.
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

    /// Returns the `reason` of a cause in a `Status`.
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

/// An error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The kind of error.
    pub kind: ErrorType,
    /// The path of the field.
    pub field: Path,
    /// The value of the field; `None` if the message does not show it.
    pub value: Option<Value>,
    /// The explanation; may be empty.
    pub detail: String,
}

/// The number of field errors that one response reports.
const MAX_ERRORS: usize = 1000;
/// The size of the field errors that one response reports, in bytes. The error that exceeds it is still reported.
const MAX_ERROR_BYTES: usize = 100 << 10;

/// The field errors of one object, bounded in number and bytes while they are collected.
///
/// An object of a few megabytes can have a million wrong fields, and an error may quote all of a list. Beyond the
/// bounds errors are only counted, and the last error of the list reports that count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList {
    errors: Vec<FieldError>,
    bytes: usize,
    omitted: usize,
}

impl ErrorList {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { errors: Vec::new(), bytes: 0, omitted: 0 }
    }

    /// Adds an error, or counts it if the list is full.
    pub fn push(&mut self, error: FieldError) {
        if self.is_full() {
            return self.omit(1);
        }
        self.bytes += error.size();
        self.errors.push(error);
    }

    /// Adds an error with a large value, such as a whole list. It is not built if the list is full.
    pub fn push_with(&mut self, error: impl FnOnce() -> FieldError) {
        if self.is_full() { self.omit(1) } else { self.push(error()) }
    }

    /// Reports whether further errors are only counted.
    pub fn is_full(&self) -> bool {
        self.omitted > 0 || self.errors.len() >= MAX_ERRORS || self.bytes >= MAX_ERROR_BYTES
    }

    /// Moves all errors of `other` to the end of this list.
    pub fn append(&mut self, other: &mut Self) {
        let Self { mut errors, omitted, .. } = std::mem::take(other);
        if omitted > 0 {
            errors.pop();
        }
        self.extend(errors);
        if omitted > 0 {
            self.omit(omitted);
        }
    }

    /// Puts the errors of another list before those of this one.
    pub fn prepend(&mut self, mut first: Self) {
        first.append(self);
        *self = first;
    }

    /// Removes all errors.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    fn omit(&mut self, count: usize) {
        if self.omitted == 0 {
            let shown = self.errors.len();
            let detail = format!("field errors, of which only the first {shown} are shown");
            self.errors.push(FieldError::new(ErrorType::TooMany, &Path::default(), None, detail));
        }
        self.omitted += count;
        let total = self.errors.len() - 1 + self.omitted;
        if let Some(notice) = self.errors.last_mut() {
            notice.value = Some(total.into());
        }
    }
}

impl Deref for ErrorList {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.errors
    }
}

impl Extend<FieldError> for ErrorList {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut list = Self::new();
        list.extend(errors);
        list
    }
}

impl From<Vec<FieldError>> for ErrorList {
    fn from(errors: Vec<FieldError>) -> Self {
        errors.into_iter().collect()
    }
}

impl<const N: usize> From<[FieldError; N]> for ErrorList {
    fn from(errors: [FieldError; N]) -> Self {
        errors.into_iter().collect()
    }
}

impl From<ErrorList> for Vec<FieldError> {
    fn from(list: ErrorList) -> Self {
        list.errors
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

impl<'a> IntoIterator for &'a ErrorList {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.iter()
    }
}

impl FieldError {
    fn new(kind: ErrorType, field: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        steps::spend(1);
        Self { kind, field: field.clone(), value, detail: detail.into() }
    }

    /// Returns an error for a required field that is absent or empty.
    pub fn required(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, field, None, detail)
    }

    /// Returns an error for a value that breaks the rule in `detail`.
    pub fn invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, field, Some(value.into()), detail)
    }

    /// Returns an error for a value whose type differs from the schema.
    pub fn type_invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, field, Some(value.into()), detail)
    }

    /// Returns an error for an unknown value. The message lists the supported values in this order.
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

    /// Returns an error for a field that must not be set or changed, as `detail` explains.
    pub fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, field, None, detail)
    }

    /// Returns an error for a value that occurs twice.
    pub fn duplicate(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::Duplicate, field, Some(value.into()), "")
    }

    /// Returns an error for a value that names a nonexistent object.
    pub fn not_found(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::NotFound, field, Some(value.into()), "")
    }

    /// Returns an error for a text that is too long. The message does not repeat the text.
    pub fn too_long(field: &Path, max_bytes: usize) -> Self {
        Self::new(
            ErrorType::TooLong,
            field,
            None,
            format!("may not be more than {max_bytes} bytes"),
        )
    }

    /// Returns an error for a list or map with too many items.
    pub fn too_many(field: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorType::TooMany,
            field,
            Some(actual.into()),
            format!("must have at most {max} {items}"),
        )
    }

    /// Returns an error for a check that failed itself, so that the validity of the field is unknown.
    pub fn internal(field: &Path, cause: impl fmt::Display) -> Self {
        Self::new(ErrorType::Internal, field, None, cause.to_string())
    }

    /// Returns the approximate size of the message, in bytes.
    fn size(&self) -> usize {
        fn of(value: &Value) -> usize {
            match value {
                Value::String(text) => text.len(),
                Value::Array(items) => items.iter().map(|item| 1 + of(item)).sum(),
                Value::Object(members) => {
                    members.iter().map(|(key, v)| key.len() + 4 + of(v)).sum()
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => 4,
            }
        }
        self.field.as_str().len() + self.detail.len() + self.value.as_ref().map_or(0, of)
    }

    /// Returns the message without the field, as in `details.causes[].message`.
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

/// Joins errors like upstream's aggregate: one error stands alone, several are in brackets, duplicates are dropped.
pub fn aggregate<'a>(errors: impl IntoIterator<Item = &'a FieldError>) -> String {
    let all: Vec<String> = errors.into_iter().map(ToString::to_string).collect();
    let mut seen = HashSet::with_capacity(all.len());
    let distinct: Vec<&str> =
        all.iter().map(String::as_str).filter(|message| seen.insert(*message)).collect();
    match distinct[..] {
        [one] => one.to_owned(),
        _ => format!("[{}]", distinct.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn builds_short_and_long_paths() {
        let parts: Vec<String> = (0..12).map(|n| format!("part{n}")).collect();
        let (mut path, mut text) = (Path::new("spec"), "spec".to_owned());
        for (index, part) in parts.iter().enumerate() {
            path = path.child(part).index(index).key("é");
            text = format!("{text}.{part}[{index}][é]");
            assert_eq!(path.as_str(), text);
            assert_eq!(path, Path::new(&text));
        }
        let exact = Path::new(&"x".repeat(SHORT));
        assert_eq!(exact.as_str().len(), SHORT);
        assert_eq!(exact.child("").as_str().len(), SHORT + 1);
        assert!(Path::new("a") < Path::new("b") && exact < exact.child("a"));
    }

    #[test]
    fn prints_upstream_messages() {
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
    fn counts_errors_beyond_bound() {
        let error = |i: usize| FieldError::required(&Path::new("list").index(i), "");
        let mut list: ErrorList = (0..MAX_ERRORS).map(error).collect();
        assert_eq!(list.len(), MAX_ERRORS);
        list.push(error(0));
        let mut more: ErrorList = (0..MAX_ERRORS + 7).map(error).collect();
        list.append(&mut more);
        assert_eq!(list.len(), MAX_ERRORS + 1);
        assert_eq!(
            list[MAX_ERRORS].to_string(),
            "<nil>: Too many: 2008: field errors, of which only the first 1000 are shown"
        );
    }

    #[test]
    fn stops_quoting_values_beyond_bound() {
        let long = json!(["x".repeat(MAX_ERROR_BYTES / 2)]);
        let list: ErrorList =
            (0..10).map(|_| FieldError::invalid(&Path::new("a"), long.clone(), "")).collect();
        assert_eq!((list.len(), list.is_full()), (3, true));
        assert_eq!(list[2].value, Some(json!(10)));
    }

    #[test]
    fn aggregates_without_repeats() {
        let a = FieldError::required(&Path::new("a"), "");
        let b = FieldError::required(&Path::new("b"), "");
        assert_eq!(aggregate([&a, &a]), "a: Required value");
        assert_eq!(aggregate([&a, &b, &a]), "[a: Required value, b: Required value]");
    }
}
