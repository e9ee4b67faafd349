//! Encodes OpenAPI documents in gnostic's protobuf messages, which Kubernetes clients request.
//!
//! The tables in the submodules give the field number of each member of a JSON document. One encoder serves both
//! versions of the format.

use serde_json::Value;

use message::encode;

mod message;
mod v2;
mod v3;

/// Encodes an OpenAPI v2 document (`openapi.v2.Document`).
pub fn v2(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, document, &v2::DOCUMENT);
    out
}

/// Encodes an OpenAPI v3 document (`openapi.v3.Document`).
pub fn v3(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, document, &v3::DOCUMENT);
    out
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
