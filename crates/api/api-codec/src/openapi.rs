//! Encodes OpenAPI documents in gnostic's protobuf messages, which Kubernetes clients request.
//!
//! The tables in the submodules give the field number of each member of a JSON document. One encoder serves both
//! versions of the format.

use serde_json::Value;

use crate::protobuf::wire;

mod v2;
mod v3;

/// The encoding of one member.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Flag,
    Integer,
    Double,
    Message(&'static Message),
    /// A repeated field: one field for each item of a list.
    Each(&'static Form),
    /// A message that contains only the value, under this number.
    Within(u32, &'static Form),
    /// A message that contains the value under the number of the first matching case.
    OneOf(&'static [Case]),
    /// A value of any type, as YAML (JSON is valid YAML).
    Any,
}

/// A case of a choice: its condition, its field number and its encoding.
type Case = (fn(&Value) -> bool, u32, Form);

/// A message: its members by name.
struct Message {
    fields: &'static [(&'static str, u32, Form)],
    /// The field of members that begin with `x-`; 0 if they are treated like other members.
    extensions: u32,
    /// The field of all other members, each with its name.
    rest: Option<(u32, Form)>,
}

impl Message {
    const fn new(fields: &'static [(&'static str, u32, Form)], extensions: u32) -> Self {
        Self { fields, extensions, rest: None }
    }

    /// Creates a message of names and their values.
    const fn map(value: Form) -> Self {
        Self { fields: &[], extensions: 0, rest: Some((1, value)) }
    }
}

/// Encodes an OpenAPI v2 document (`openapi.v2.Document`).
pub fn v2(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, document, &v2::DOCUMENT);
    out
}

/// Encodes an OpenAPI v3 document (`openapi.v3.Document`).
pub fn v3(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, document, &v3::DOCUMENT);
    out
}

fn message(out: &mut Vec<u8>, value: &Value, message: &Message) {
    let Value::Object(members) = value else { return };
    for (name, value) in members {
        if let Some((_, number, form)) = message.fields.iter().find(|(known, ..)| known == name) {
            put(out, *number, value, form);
        } else if message.extensions != 0 && name.starts_with("x-") {
            named(out, message.extensions, name, value, &Form::Any);
        } else if let Some((number, form)) = &message.rest {
            named(out, *number, name, value, form);
        }
    }
}

fn named(out: &mut Vec<u8>, number: u32, name: &str, value: &Value, form: &Form) {
    wire::nested(out, number, |out| {
        wire::bytes(out, 1, name.as_bytes());
        put(out, 2, value, form);
    });
}

/// Writes one member. A value of the wrong type is omitted, because the format cannot represent it.
fn put(out: &mut Vec<u8>, number: u32, value: &Value, form: &Form) {
    match (form, value) {
        (Form::Text, Value::String(text)) => wire::bytes(out, number, text.as_bytes()),
        (Form::Flag, Value::Bool(flag)) => wire::varint(out, number, u64::from(*flag)),
        (Form::Integer, Value::Number(n)) => {
            if let Some(n) = n.as_i64() {
                wire::varint(out, number, n.cast_unsigned());
            }
        }
        (Form::Double, Value::Number(n)) => {
            wire::double(out, number, n.as_f64().unwrap_or_default());
        }
        (Form::Message(of), Value::Object(_)) => {
            wire::nested(out, number, |out| message(out, value, of))
        }
        (Form::Each(form), Value::Array(items)) => {
            items.iter().for_each(|item| put(out, number, item, form));
        }
        (Form::Each(form), one) => put(out, number, one, form),
        (Form::Within(below, form), value) => {
            wire::nested(out, number, |out| put(out, *below, value, form));
        }
        (Form::OneOf(cases), value) => {
            if let Some((_, below, form)) = cases.iter().find(|(is, ..)| is(value)) {
                wire::nested(out, number, |out| put(out, *below, value, form));
            }
        }
        (Form::Any, value) => {
            wire::nested(out, number, |out| wire::bytes(out, 2, value.to_string().as_bytes()));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protobuf::wire::{Reader, Wire};

    /// Returns the bytes of the first field along a path of field numbers.
    fn at<'a>(mut bytes: &'a [u8], path: &[u32]) -> Option<&'a [u8]> {
        for wanted in path {
            let mut reader = Reader::new(bytes);
            bytes = loop {
                match reader.next().unwrap()? {
                    (number, Wire::Bytes(found)) if number == *wanted => break found,
                    _ => {}
                }
            };
        }
        Some(bytes)
    }

    #[test]
    fn encodes_v2_document_with_gnostic_numbers() {
        let document = json!({
            "swagger": "2.0",
            "paths": {"/api/": {"get": {"operationId": "read", "parameters": [
                {"name": "limit", "in": "query", "type": "integer", "uniqueItems": true},
                {"$ref": "#/parameters/pretty"}]}}},
            "definitions": {"a.Widget": {"type": "object", "x-kubernetes-group-version-kind": [{"kind": "Widget"}],
                "properties": {"x-size": {"type": "integer", "format": "int32"}}}},
        });
        let bytes = v2(&document);
        let text = |path: &[u32]| at(&bytes, path).map(|b| String::from_utf8_lossy(b).into_owned());
        assert_eq!(text(&[1]).as_deref(), Some("2.0"));
        // paths, path, PathItem, get, operation_id
        assert_eq!(text(&[8, 2, 2, 2, 5]).as_deref(), Some("read"));
        // … parameters, parameter, non_body_parameter, query_parameter_sub_schema, name
        assert_eq!(text(&[8, 2, 2, 2, 8, 1, 2, 3, 4]).as_deref(), Some("limit"));
        // definitions, NamedSchema: its name, its type, its first extension, its first property's format
        assert_eq!(text(&[9, 1, 1]).as_deref(), Some("a.Widget"));
        assert_eq!(text(&[9, 1, 2, 22, 1]).as_deref(), Some("object"));
        assert_eq!(text(&[9, 1, 2, 31, 2, 2]).as_deref(), Some("[{\"kind\":\"Widget\"}]"));
        assert_eq!(text(&[9, 1, 2, 25, 1, 1]).as_deref(), Some("x-size"));
        assert_eq!(text(&[9, 1, 2, 25, 1, 2, 2]).as_deref(), Some("int32"));
    }

    #[test]
    fn encodes_references_and_schemas_of_v3_document() {
        let document = json!({
            "openapi": "3.0.0",
            "components": {"schemas": {
                "a": {"$ref": "#/components/schemas/b"},
                "b": {"type": "string", "default": "x"}}},
        });
        let bytes = v3(&document);
        let named = at(&bytes, &[5, 1, 1]).unwrap();
        assert_eq!(at(named, &[2, 2, 1]).unwrap(), b"#/components/schemas/b");
        let tail = at(&bytes, &[5, 1]).unwrap();
        let mut reader = Reader::new(tail);
        reader.next().unwrap();
        let Some((1, Wire::Bytes(second))) = reader.next().unwrap() else {
            panic!("no second schema")
        };
        assert_eq!(at(second, &[2, 1, 25]).unwrap(), b"string");
        assert_eq!(at(second, &[2, 1, 33, 3]).unwrap(), b"x");
    }
}
