//! Decodes protobuf messages to trees.

use api_meta::{Budget, JsonError, Timestamp};
use api_schema::{Field, Node, NodeId, Schema, Shape};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::{Reader, Wire};
use super::{
    envelope::{Envelope, node_of, open},
    error::{MAGIC, ProtobufError},
};

/// Decodes an enveloped object of a built-in kind. The tree has kind and apiVersion, and otherwise only the encoded
/// fields. Pass it through [`api_schema::decode_value`] for Go's zero values and for defaults.
pub fn from_protobuf(schema: &Schema, bytes: &[u8]) -> Result<Value, ProtobufError> {
    read(schema, bytes, &mut Budget::object())
}

/// Decodes an enveloped object within the rest of a budget.
fn read(schema: &Schema, bytes: &[u8], budget: &mut Budget) -> Result<Value, ProtobufError> {
    let Envelope { api_version, kind, raw } = open(bytes)?;
    let node = node_of(schema, api_version, kind)?;
    let mut value = message_within(schema, node, raw, budget)?;
    if let Some(members) = value.as_object_mut() {
        members.insert("apiVersion".to_owned(), api_version.into());
        members.insert("kind".to_owned(), kind.into());
    }
    Ok(value)
}

/// Decodes a message of the type at `node`, without an envelope.
pub fn message_to_value(
    schema: &Schema,
    node: NodeId,
    message: &[u8],
) -> Result<Value, ProtobufError> {
    message_within(schema, node, message, &mut Budget::object())
}

/// Decodes a message within the rest of a budget. Everything in the message, including envelopes and JSON, counts
/// against it.
fn message_within(
    schema: &Schema,
    node: NodeId,
    message: &[u8],
    budget: &mut Budget,
) -> Result<Value, ProtobufError> {
    Decoder { schema }.body(schema.node(node), message, budget)
}

struct Decoder<'s> {
    schema: &'s Schema,
}

type DecodeResult<T> = Result<T, ProtobufError>;

fn malformed<T>(node: &Node, problem: &'static str) -> DecodeResult<T> {
    Err(ProtobufError::Malformed(node.name.as_deref().unwrap_or("a scalar").to_owned(), problem))
}

impl Decoder<'_> {
    /// Decodes the contents of a message.
    fn body(&self, node: &Node, message: &[u8], budget: &mut Budget) -> DecodeResult<Value> {
        match &node.shape {
            Shape::Struct(body) => {
                let mut members = Map::new();
                self.fields(node, &body.fields, &[], message, &mut members, budget)?;
                Ok(Value::Object(members))
            }
            Shape::List { item, .. } => {
                let mut items = Vec::new();
                for field in self.all(node, message, budget)? {
                    if let (1, wire) = field {
                        self.items(self.schema.node(*item), wire, &mut items, budget)?;
                    }
                }
                Ok(Value::Array(items))
            }
            Shape::Quantity => {
                Ok(match self.all(node, message, budget)?.into_iter().rfind(|(n, _)| *n == 1) {
                    Some((_, Wire::Bytes(text))) if !text.is_empty() => {
                        Value::String(decode_text(node, text, budget)?)
                    }
                    _ => Value::from("0"),
                })
            }
            Shape::IntOrString => self.int_or_string(node, message, budget),
            Shape::Time | Shape::MicroTime => self.time(node, message, budget),
            _ => self.any(node, message, budget),
        }
    }

    fn all<'m>(
        &self,
        node: &Node,
        message: &'m [u8],
        budget: &mut Budget,
    ) -> DecodeResult<Vec<(u32, Wire<'m>)>> {
        let mut reader = Reader::new(message);
        let mut fields = Vec::new();
        loop {
            match reader.next() {
                Ok(Some(field)) => {
                    budget.spend(2 * size_of::<(u32, Wire<'m>)>())?;
                    fields.push(field);
                }
                Ok(None) => return Ok(fields),
                Err(problem) => return malformed(node, problem),
            }
        }
    }

    /// Decodes a struct's fields, or those of a nested message that JSON inlines; `prefix` is the path to that message.
    fn fields(
        &self,
        node: &Node,
        fields: &[Field],
        prefix: &[u32],
        message: &[u8],
        out: &mut Map<String, Value>,
        budget: &mut Budget,
    ) -> DecodeResult<()> {
        let mut reader = Reader::new(message);
        loop {
            let (number, wire) = match reader.next() {
                Ok(Some(field)) => field,
                Ok(None) => return Ok(()),
                Err(problem) => return malformed(node, problem),
            };
            let here = |f: &&Field| {
                f.proto.strip_prefix(prefix).is_some_and(|rest| rest.first() == Some(&number))
            };
            let Some(field) = fields.iter().find(here) else { continue };
            if field.proto.len() > prefix.len() + 1 {
                let path = &field.proto[..=prefix.len()];
                match wire {
                    Wire::Bytes(inner) => budget
                        .nested(|budget| self.fields(node, fields, path, inner, out, budget))?,
                    _ => return malformed(node, "a message has the wire type of a number"),
                }
            } else {
                self.member(field, wire, out, budget)?;
            }
        }
    }

    fn member(
        &self,
        field: &Field,
        wire: Wire<'_>,
        out: &mut Map<String, Value>,
        budget: &mut Budget,
    ) -> DecodeResult<()> {
        let node = self.schema.node(field.node);
        match &node.shape {
            Shape::List { item, .. } if node.name.is_none() => {
                let list =
                    out.entry(field.name.as_ref()).or_insert_with(|| Value::Array(Vec::new()));
                match list {
                    Value::Array(items) => self.items(self.schema.node(*item), wire, items, budget),
                    _ => Ok(()),
                }
            }
            Shape::Map { value, .. } => {
                let Wire::Bytes(entry) = wire else {
                    return malformed(node, "a map entry is not a message");
                };
                let (key, value) = self.entry(self.schema.node(*value), entry, budget)?;
                let map =
                    out.entry(field.name.as_ref()).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(members) = map {
                    budget.member("", members.is_empty())?;
                    members.insert(key, value);
                }
                Ok(())
            }
            _ => {
                let value = self.single(node, wire, budget)?;
                budget.member(&field.name, out.is_empty())?;
                out.insert(field.name.as_ref().to_owned(), value);
                Ok(())
            }
        }
    }

    /// Decodes an item of a list. Numbers may be packed, many in one field.
    fn items(
        &self,
        item: &Node,
        wire: Wire<'_>,
        items: &mut Vec<Value>,
        budget: &mut Budget,
    ) -> DecodeResult<()> {
        match (&item.shape, wire) {
            (Shape::Integer { .. } | Shape::Boolean, Wire::Bytes(packed)) => {
                let mut reader = Reader::new(packed);
                while !reader.is_empty() {
                    match reader.varint() {
                        Ok(number) => {
                            budget.item()?;
                            items.push(self.single(item, Wire::Varint(number), budget)?);
                        }
                        Err(problem) => return malformed(item, problem),
                    }
                }
            }
            _ => {
                budget.item()?;
                items.push(self.single(item, wire, budget)?);
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        node: &Node,
        entry: &[u8],
        budget: &mut Budget,
    ) -> DecodeResult<(String, Value)> {
        let (mut key, mut value) = (String::new(), None);
        for field in self.all(node, entry, budget)? {
            match field {
                (1, Wire::Bytes(text)) => key = decode_text(node, text, budget)?,
                (2, wire) => value = Some(self.single(node, wire, budget)?),
                _ => {}
            }
        }
        Ok((key, value.unwrap_or_else(|| zero(node))))
    }

    fn single(&self, node: &Node, wire: Wire<'_>, budget: &mut Budget) -> DecodeResult<Value> {
        match (&node.shape, wire) {
            (Shape::String | Shape::Duration, Wire::Bytes(text)) => {
                Ok(Value::String(decode_text(node, text, budget)?))
            }
            (Shape::Bytes, Wire::Bytes(bytes)) => {
                budget.spend(bytes.len().div_ceil(3) * 4 + 16)?;
                Ok(Value::String(STANDARD.encode(bytes)))
            }
            (Shape::Integer { bits: 32, unsigned: false }, Wire::Varint(number)) => {
                Ok(Value::from(number as i32))
            }
            (Shape::Integer { .. }, Wire::Varint(number)) => Ok(Value::from(number as i64)),
            (Shape::Boolean, Wire::Varint(number)) => Ok(Value::from(number != 0)),
            (Shape::Number, Wire::Fixed64(bits)) => Ok(number(f64::from_bits(bits))),
            (
                Shape::String
                | Shape::Duration
                | Shape::Bytes
                | Shape::Integer { .. }
                | Shape::Boolean
                | Shape::Number,
                _,
            ) => malformed(node, "a field has the wrong wire type"),
            (_, Wire::Bytes(message)) => budget.nested(|budget| self.body(node, message, budget)),
            _ => malformed(node, "a message has the wire type of a number"),
        }
    }

    fn int_or_string(
        &self,
        node: &Node,
        message: &[u8],
        budget: &mut Budget,
    ) -> DecodeResult<Value> {
        let (mut is_text, mut number, mut text) = (false, 0, String::new());
        for field in self.all(node, message, budget)? {
            match field {
                (1, Wire::Varint(kind)) => is_text = kind == 1,
                (2, Wire::Varint(value)) => number = value as i32,
                (3, Wire::Bytes(value)) => text = decode_text(node, value, budget)?,
                _ => {}
            }
        }
        Ok(if is_text { text.into() } else { number.into() })
    }

    fn time(&self, node: &Node, message: &[u8], budget: &mut Budget) -> DecodeResult<Value> {
        if message.is_empty() {
            return Ok(Value::Null);
        }
        let (mut seconds, mut nanos) = (0, 0);
        for field in self.all(node, message, budget)? {
            match field {
                (1, Wire::Varint(value)) => seconds = value as i64,
                (2, Wire::Varint(value)) => nanos = value as u32,
                _ => {}
            }
        }
        // Years 0 to 9999: RFC 3339 has no text for others.
        if !(-62_167_219_200..253_402_300_800).contains(&seconds) || nanos >= 1_000_000_000 {
            return malformed(node, "a time is out of range");
        }
        let stamp = Timestamp::from_unix(seconds, nanos);
        Ok(Value::String(if matches!(node.shape, Shape::Time) {
            stamp.to_string()
        } else {
            stamp.micros()
        }))
    }

    fn any(&self, node: &Node, message: &[u8], budget: &mut Budget) -> DecodeResult<Value> {
        let fields = self.all(node, message, budget)?;
        let Some(union) = node.schema_or() else {
            return match fields.into_iter().rfind(|(number, _)| *number == 1) {
                Some((_, Wire::Bytes(raw))) => self.raw(node, raw, budget),
                _ => Ok(Value::Null),
            };
        };
        let Some(schema) = self.schema.json_schema() else {
            return malformed(node, "its schema is not in the table");
        };
        let schema = self.schema.node(schema);
        let (mut single, mut list, mut allows) = (None, Vec::new(), None);
        for field in fields {
            match (union, field) {
                ("Bool", (1, Wire::Varint(value))) => allows = Some(Value::from(value != 0)),
                ("Bool", (2, Wire::Bytes(inner))) | (_, (1, Wire::Bytes(inner))) => {
                    single = Some(budget.nested(|budget| self.body(schema, inner, budget))?);
                }
                ("StringArray", (2, Wire::Bytes(text))) => {
                    list.push(decode_text(node, text, budget)?.into())
                }
                ("Array", (2, Wire::Bytes(inner))) => {
                    budget.item()?;
                    list.push(budget.nested(|budget| self.body(schema, inner, budget))?)
                }
                _ => {}
            }
        }
        Ok(single.or(allows).unwrap_or(Value::Array(list)))
    }

    /// Decodes free-form bytes, which are JSON. In a RawExtension they may also be an enveloped object.
    fn raw(&self, node: &Node, raw: &[u8], budget: &mut Budget) -> DecodeResult<Value> {
        if raw.is_empty() {
            return Ok(Value::Null);
        }
        let extension = node.name.as_deref().is_some_and(|name| name.ends_with(".RawExtension"));
        if extension && raw.starts_with(MAGIC) {
            return budget.nested(|budget| read(self.schema, raw, budget));
        }
        let fields = node.is_fields();
        if fields {
            budget.raise();
        }
        let read = budget.json(raw);
        if fields {
            budget.lower();
        }
        match read {
            Ok(value) => Ok(value),
            Err(JsonError::Exceeded(exceeded)) => Err(exceeded.into()),
            Err(JsonError::Syntax(_)) => malformed(node, "its bytes are not JSON"),
        }
    }
}

fn decode_text(node: &Node, bytes: &[u8], budget: &mut Budget) -> DecodeResult<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            budget.text(text)?;
            Ok(text.to_owned())
        }
        Err(_) => malformed(node, "text is not UTF-8"),
    }
}

/// Converts a float to JSON like Go: a whole number has no point, and JSON has no infinite numbers.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

/// Returns the value of a map entry without a value.
fn zero(node: &Node) -> Value {
    match node.shape {
        Shape::String | Shape::Bytes | Shape::Duration => Value::from(""),
        Shape::Quantity => Value::from("0"),
        Shape::Integer { .. } | Shape::Number | Shape::IntOrString => Value::from(0),
        Shape::Boolean => Value::from(false),
        Shape::Struct(_) => Value::Object(Map::new()),
        Shape::List { .. } => Value::Array(Vec::new()),
        _ => Value::Null,
    }
}
