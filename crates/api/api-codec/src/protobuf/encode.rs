//! Encodes trees as protobuf messages.

use api_meta::{Quantity, Timestamp};
use api_schema::{Field, Node, NodeId, Schema, Shape};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{
    envelope::{envelope, node_of},
    error::ProtobufError,
    wire,
};

/// Encodes an object of a built-in kind in an envelope.
pub fn to_protobuf(
    schema: &Schema,
    api_version: &str,
    kind: &str,
    value: &Value,
) -> Result<Vec<u8>, ProtobufError> {
    let node = node_of(schema, api_version, kind)?;
    Ok(envelope(api_version, kind, &value_to_message(schema, node, value)?))
}

/// Encodes a tree as the message of its type, without an envelope.
pub fn value_to_message(
    schema: &Schema,
    node: NodeId,
    value: &Value,
) -> Result<Vec<u8>, ProtobufError> {
    let mut out = Vec::with_capacity(512);
    let node = schema.node(node);
    Encoder { schema }.body(&mut out, node, value).map_err(|error| error.at(node))?;
    Ok(out)
}

/// A member of an object with the rest of its path of field numbers.
#[derive(Clone, Copy)]
struct Member<'a> {
    field: &'a Field,
    path: &'a [u32],
    value: &'a Value,
}

/// The error of a value that cannot be encoded. Callers add the path while they return.
struct EncodeError {
    path: Vec<String>,
    found: &'static str,
    expected: &'static str,
}

type EncodeResult = Result<(), EncodeError>;

impl EncodeError {
    fn new<T>(found: &Value, expected: &'static str) -> Result<T, EncodeError> {
        Err(EncodeError { path: Vec::new(), found: json_type(found), expected })
    }

    fn at(mut self, node: &Node) -> ProtobufError {
        self.path.push(node.name.as_deref().unwrap_or_default().to_owned());
        self.path.reverse();
        ProtobufError::Mismatch {
            path: self.path.join("."),
            found: self.found,
            expected: self.expected,
        }
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

struct Encoder<'s> {
    schema: &'s Schema,
}

impl Encoder<'_> {
    /// Writes a field with its number: nothing for `null`, and one field for each item of a list or map.
    fn field(&self, out: &mut Vec<u8>, number: u32, node: NodeId, value: &Value) -> EncodeResult {
        let node = self.schema.node(node);
        match (&node.shape, value) {
            (_, Value::Null) => Ok(()),
            (Shape::List { item, .. }, Value::Array(items)) if node.name.is_none() => items
                .iter()
                .try_for_each(|value| self.single(out, number, self.schema.node(*item), value)),
            (Shape::Map { value: node, .. }, Value::Object(members)) => {
                members.iter().try_for_each(|(key, value)| {
                    wire::nested(out, number, |out| {
                        wire::bytes(out, 1, key.as_bytes());
                        self.single(out, 2, self.schema.node(*node), value)
                    })
                })
            }
            _ => self.single(out, number, node, value),
        }
    }

    /// Writes exactly one field.
    fn single(&self, out: &mut Vec<u8>, number: u32, node: &Node, value: &Value) -> EncodeResult {
        match (&node.shape, value) {
            (Shape::String | Shape::Duration, Value::String(text)) => {
                wire::bytes(out, number, text.as_bytes())
            }
            (Shape::String | Shape::Duration | Shape::Bytes, Value::Null) => {
                wire::bytes(out, number, b"")
            }
            (Shape::Bytes, Value::String(text)) => match STANDARD.decode(text) {
                Ok(bytes) => wire::bytes(out, number, &bytes),
                Err(_) => return EncodeError::new(value, "base64"),
            },
            (Shape::Integer { .. }, _) => match value.as_i64() {
                // A negative number is sign-extended to ten bytes, whatever its width.
                Some(value) => wire::varint(out, number, value as u64),
                None => return EncodeError::new(value, "integer"),
            },
            (Shape::Number, _) => match value.as_f64() {
                Some(value) => wire::double(out, number, value),
                None => return EncodeError::new(value, "number"),
            },
            (Shape::Boolean, Value::Bool(value)) => wire::varint(out, number, u64::from(*value)),
            (Shape::String | Shape::Duration, _) => return EncodeError::new(value, "string"),
            (Shape::Boolean, _) => return EncodeError::new(value, "boolean"),
            (Shape::Bytes, _) => return EncodeError::new(value, "base64"),
            _ => return wire::nested(out, number, |out| self.body(out, node, value)),
        }
        Ok(())
    }

    /// Writes the contents of a message, without its number and length.
    fn body(&self, out: &mut Vec<u8>, node: &Node, value: &Value) -> EncodeResult {
        match (&node.shape, value) {
            (_, Value::Null) => Ok(()),
            (Shape::Struct(body), Value::Object(members)) => {
                self.fields(out, &body.fields, members)
            }
            (Shape::List { item, .. }, Value::Array(items)) => items
                .iter()
                .try_for_each(|value| self.single(out, 1, self.schema.node(*item), value)),
            (Shape::Quantity, _) => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let Ok(quantity) = Quantity::parse(&text) else {
                    return EncodeError::new(value, "quantity");
                };
                wire::bytes(out, 1, quantity.to_string().as_bytes());
                Ok(())
            }
            (Shape::IntOrString, _) => int_or_string(out, value),
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                let Ok(stamp) = text.parse::<Timestamp>() else {
                    return EncodeError::new(value, "time");
                };
                let nanos =
                    if matches!(node.shape, Shape::Time) { 0 } else { stamp.nanos() / 1000 * 1000 };
                wire::varint(out, 1, stamp.unix() as u64);
                wire::varint(out, 2, u64::from(nanos));
                Ok(())
            }
            (Shape::Any, _) => self.any(out, node, value),
            (Shape::Struct(_), _) => EncodeError::new(value, "message"),
            (Shape::List { .. }, _) => EncodeError::new(value, "list"),
            (Shape::Map { .. }, _) => EncodeError::new(value, "map"),
            _ => EncodeError::new(value, "time"),
        }
    }

    /// Writes a struct's fields in the order of their numbers. Fields that protobuf keeps in a nested message are
    /// adjacent and are written together.
    fn fields(
        &self,
        out: &mut Vec<u8>,
        fields: &[Field],
        members: &Map<String, Value>,
    ) -> EncodeResult {
        let mut present: Vec<Member<'_>> = Vec::with_capacity(members.len());
        // Both are sorted by name.
        let mut fields = fields.iter().peekable();
        for (name, value) in members {
            while fields.peek().is_some_and(|f| *f.name < **name) {
                fields.next();
            }
            match fields.peek() {
                Some(field) if *field.name == **name && !field.proto.is_empty() => {
                    present.push(Member { field, path: &field.proto, value });
                }
                _ => {}
            }
        }
        present.sort_unstable_by_key(|member| &member.field.proto);
        self.encode_group(out, &present)
    }

    fn encode_group(&self, out: &mut Vec<u8>, members: &[Member<'_>]) -> EncodeResult {
        let mut rest = members;
        while let Some(Member { field, path, value }) = rest.first().copied() {
            let number = path[0];
            let group = rest.iter().take_while(|member| member.path[0] == number).count();
            if path.len() == 1 {
                self.field(out, number, field.node, value).map_err(|mut error| {
                    error.path.push(field.name.as_ref().to_owned());
                    error
                })?;
            } else {
                let inner: Vec<Member<'_>> = rest[..group]
                    .iter()
                    .map(|member| Member { path: &member.path[1..], ..*member })
                    .collect();
                wire::nested(out, number, |out| self.encode_group(out, &inner))?;
            }
            rest = &rest[group..];
        }
        Ok(())
    }

    /// Writes a free-form value. Each free-form type has its own message.
    fn any(&self, out: &mut Vec<u8>, node: &Node, value: &Value) -> EncodeResult {
        let Some(union) = node.schema_or() else {
            let raw = value.to_string();
            wire::bytes(out, 1, raw.as_bytes());
            return Ok(());
        };
        let schema = self.schema.json_schema();
        let schema = |out: &mut Vec<u8>, number, value: &Value| match schema {
            Some(node) => self.single(out, number, self.schema.node(node), value),
            None => Ok(()),
        };
        match (union, value) {
            ("Bool", Value::Bool(allows)) => {
                wire::varint(out, 1, u64::from(*allows));
                Ok(())
            }
            ("Bool", _) => {
                wire::varint(out, 1, 1);
                schema(out, 2, value)
            }
            ("Array", Value::Array(items)) => {
                items.iter().try_for_each(|item| schema(out, 2, item))
            }
            ("StringArray", Value::Array(items)) => items.iter().try_for_each(|item| match item {
                Value::String(text) => {
                    wire::bytes(out, 2, text.as_bytes());
                    Ok(())
                }
                other => EncodeError::new(other, "string"),
            }),
            _ => schema(out, 1, value),
        }
    }
}

/// Writes all three fields, as upstream does.
fn int_or_string(out: &mut Vec<u8>, value: &Value) -> EncodeResult {
    let (is_text, number, text) = match value {
        Value::String(text) => (1, 0, text.as_str()),
        _ => match value.as_i64() {
            Some(number) => (0, number, ""),
            None => return EncodeError::new(value, "integer or string"),
        },
    };
    wire::varint(out, 1, is_text);
    wire::varint(out, 2, number as u64);
    wire::bytes(out, 3, text.as_bytes());
    Ok(())
}
