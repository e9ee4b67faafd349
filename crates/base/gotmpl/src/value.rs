//! The values of a running template: views of the data, or results of functions.

use std::borrow::Cow;

use serde_json::{Map, Value};

#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    /// No value: Go's invalid `reflect.Value`.
    Missing,
    /// JSON's null: a nil interface.
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(&'a [Value]),
    Map(&'a Map<String, Value>),
}

impl<'a> From<&'a Value> for Val<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Nil,
            Value::Bool(value) => Self::Bool(*value),
            // Go decodes every JSON number into a float64.
            Value::Number(number) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            Value::Array(items) => Self::List(items),
            Value::Object(map) => Self::Map(map),
        }
    }
}

impl Val<'_> {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(text.into()))
    }

    /// Converts the scalar that a caller's function returned. Returns `None` for lists and maps.
    pub(crate) fn scalar(value: Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::text(text)),
            Value::Number(number) => Some(match number.as_i64() {
                Some(value) => Self::Int(value),
                None => Self::Float(number.as_f64()?),
            }),
            Value::Bool(value) => Some(Self::Bool(value)),
            Value::Null => Some(Self::Nil),
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Missing | Self::Nil => Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Text(text) => text.as_ref().into(),
            Self::List(items) => items.to_vec().into(),
            Self::Map(map) => (*map).clone().into(),
        }
    }

    /// Returns the value of a pipeline: Go removes the interface around it, and a nil interface becomes no value.
    pub(crate) fn unwrapped(self) -> Self {
        if let Self::Nil = self { Self::Missing } else { self }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Missing | Self::Nil)
    }

    /// Returns `true` if `if` and `with` treat the value as true.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Self::Missing | Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(map) => !map.is_empty(),
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Missing | Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
        }
    }
}
