//! Conversion of values from and to JSON.

use api_meta::GoDuration;
use base64::Engine as _;
use serde_json::{Map as JsonMap, Value as Json};

use super::{Eval, List, Map, Record, Text, Value};
use crate::{
    error::EvalError,
    time,
    types::{Decl, ListKind, Shape},
};

impl<'a> Value<'a> {
    /// Converts a JSON value by its schema. Without a schema, its JSON type decides.
    pub fn from_json(json: &'a Json, decl: &'a Decl) -> Result<Self, EvalError> {
        Ok(match (json, &decl.shape) {
            (Json::Null, _) => Self::Null,
            (Json::Bool(value), Shape::Any | Shape::Bool) => Self::Bool(*value),
            (Json::Number(number), Shape::Double) => {
                Self::Double(number.as_f64().unwrap_or(f64::NAN))
            }
            (Json::Number(number), Shape::Any | Shape::Int) => match number.as_i64() {
                Some(value) => Self::Int(value),
                None => match number.as_f64() {
                    Some(value) if decl.shape == Shape::Int && value.fract() == 0.0 => {
                        Self::Int(value as i64)
                    }
                    value => Self::Double(value.unwrap_or(f64::NAN)),
                },
            },
            (Json::String(text), Shape::Any | Shape::String) => Self::String(Text::Borrowed(text)),
            (Json::String(text), shape) => parse_text(text, shape)?,
            (Json::Array(items), Shape::List { item, kind }) => {
                Self::List(List::Json { items, item, kind })
            }
            (Json::Array(items), Shape::Any) => {
                Self::List(List::Json { items, item: &Decl::ANY, kind: &ListKind::Atomic })
            }
            (Json::Object(members), Shape::Object(object)) => {
                Self::Object(Record::Json { members, object })
            }
            (Json::Object(members), Shape::Map(value)) => Self::Map(Map::Json { members, value }),
            (Json::Object(members), Shape::Any) => {
                Self::Map(Map::Json { members, value: &Decl::ANY })
            }
            (other, shape) => return Err(mistyped(other, shape)),
        })
    }

    /// Converts data without a schema.
    pub fn dynamic(json: &'a Json) -> Self {
        // Without a schema no value is invalid.
        Self::from_json(json, &Decl::ANY).unwrap_or(Self::Null)
    }

    /// Converts the value to JSON.
    pub fn to_json(&self) -> Result<Json, EvalError> {
        Ok(match self {
            Self::Null | Self::Optional(None) => Json::Null,
            Self::Bool(value) => Json::from(*value),
            Self::Int(value) => Json::from(*value),
            Self::Uint(value) => Json::from(*value),
            Self::Double(value) => Json::from(*value),
            Self::String(text) => Json::from(&**text),
            Self::Bytes(bytes) => {
                Json::from(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            Self::Timestamp(time) => Json::from(time.exact()),
            Self::Duration(nanos) => Json::from(time::show_duration(*nanos)),
            Self::List(list) => {
                let items: Result<Vec<Json>, EvalError> =
                    (0..list.len()).map(|at| list.get(at)?.to_json()).collect();
                Json::from(items?)
            }
            Self::Map(map) => {
                let mut members = JsonMap::new();
                for at in 0..map.len() {
                    let (key, value) = map.entry(at)?;
                    let Self::String(key) = key else {
                        return Err(EvalError::new("keys of JSON objects must be strings"));
                    };
                    members.insert(key.to_string(), value.to_json()?);
                }
                Json::Object(members)
            }
            Self::Object(record) => record.to_json()?,
            Self::Optional(Some(value)) => value.to_json()?,
            Self::Type(ty) => Json::from(ty.name()),
            Self::Opaque(opaque) => Json::from(opaque.to_string()),
        })
    }
}

impl Record<'_> {
    fn to_json(&self) -> Result<Json, EvalError> {
        match self {
            Self::Json { members, .. } => Ok(Json::Object((*members).clone())),
            Self::Literal { object, fields } => {
                let mut members = JsonMap::new();
                for (field, value) in object.fields.iter().zip(fields.iter()) {
                    if let Some(value) = value {
                        members.insert(field.key.to_string(), value.to_json()?);
                    }
                }
                Ok(Json::Object(members))
            }
            Self::Composed(_) => Err(EvalError::no_such_overload()),
        }
    }
}

fn mistyped(json: &Json, shape: &Shape) -> EvalError {
    let actual = match json {
        Json::Array(_) => "array",
        Json::Object(_) => "object",
        Json::String(_) => "string",
        Json::Number(_) => "number",
        Json::Bool(_) => "boolean",
        Json::Null => "null",
    };
    EvalError::Failed(format!("invalid data, expected {} but got {actual}", shape.word()))
}

impl Shape {
    fn word(&self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::Bool => "a boolean",
            Self::Int => "an integer",
            Self::Double => "a number",
            Self::String => "a string",
            Self::Bytes => "base64",
            Self::Timestamp => "a date and time",
            Self::Date => "a date",
            Self::Duration => "a duration",
            Self::List { .. } => "an array",
            Self::Map(_) | Self::Object(_) => "an object",
            Self::Computed(_) => "what is computed",
        }
    }
}

/// Converts a string by the format of its schema.
fn parse_text<'a>(text: &str, shape: &Shape) -> Eval<'a> {
    let invalid =
        || EvalError::Failed(format!("invalid data, expected {} but got {text:?}", shape.word()));
    match shape {
        Shape::Bytes => {
            let engine = base64::engine::general_purpose::STANDARD;
            engine.decode(text).map(|bytes| Value::Bytes(bytes.into())).map_err(|_| invalid())
        }
        Shape::Timestamp => text.parse().map(Value::Timestamp).map_err(|_| invalid()),
        Shape::Date => {
            format!("{text}T00:00:00Z").parse().map(Value::Timestamp).map_err(|_| invalid())
        }
        Shape::Duration => {
            text.parse::<GoDuration>().map(|d| Value::Duration(d.nanos())).map_err(|_| invalid())
        }
        _ => Err(invalid()),
    }
}
