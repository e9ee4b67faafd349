//! The error messages of Go's JSON decoder, and of upstream's converter of trees.

use crate::{
    node::{Node, Shape},
    schema::Schema,
};

/// Returns a type as Go's errors print it, such as `[]v1.Container` or `map[string]string`.
pub(crate) fn go_type(schema: &Schema, node: &Node) -> String {
    match (&node.shape, &node.name) {
        (Shape::List { item, .. }, _) => format!("[]{}", go_type(schema, schema.node(*item))),
        (Shape::Map { value, .. }, _) => {
            format!("map[string]{}", go_type(schema, schema.node(*value)))
        }
        (_, Some(name)) => {
            let start = name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
            name[start..].to_owned()
        }
        (Shape::Integer { bits, .. }, None) => format!("int{bits}"),
        (Shape::Number, None) => "float64".to_owned(),
        (Shape::Boolean, None) => "bool".to_owned(),
        (Shape::Bytes, None) => "[]uint8".to_owned(),
        _ => "string".to_owned(),
    }
}

/// Returns the message of upstream's converter of trees for a JSON value, such as `string` or `number 1.5`, where a Go
/// type is expected.
pub(crate) fn conversion_error(word: &str, go_type: &str) -> String {
    let number = word.strip_prefix("number");
    let kind = match (word, number) {
        (_, Some(number)) if number.contains(['.', 'e', 'E']) => "float64",
        (_, Some(_)) => "int64",
        ("array", _) => "slice",
        ("object", _) => "map",
        (other, _) => other,
    };
    match go_type {
        "int32" | "int64" | "float64" | "string" if number.is_some() => {
            format!("cannot convert {kind} to {go_type}")
        }
        "int32" | "int64" | "float64" | "string" | "bool" => {
            format!("unrecognized type: {go_type}")
        }
        _ if go_type.starts_with("map[") => format!("cannot restore map from {kind}"),
        _ if go_type.starts_with("[]") => format!("cannot restore slice from {kind}"),
        _ => format!("cannot restore struct from: {kind}"),
    }
}

/// Returns a syntax error in the words of Go's parser.
pub(crate) fn syntax_message(error: &serde_json::Error, json: &[u8]) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let message = error.to_string();
    let place = [
        ("key must be a string", "looking for beginning of object key string"),
        ("expected `:`", "after object key"),
        ("expected `,` or `}`", "after object key:value pair"),
        ("expected `,` or `]`", "after array element"),
        ("trailing characters", "after top-level value"),
        ("trailing comma", "looking for beginning of value"),
        ("control character", "in string literal"),
        ("invalid escape", "in string escape code"),
        ("invalid number", "in numeric literal"),
        ("expected ident", "in literal"),
        ("expected value", "looking for beginning of value"),
    ];
    let Some((_, place)) = place.iter().find(|(ours, _)| message.starts_with(ours)) else {
        return message;
    };
    let line = json.split(|b| *b == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    match line.get(error.column().saturating_sub(1)) {
        Some(b'\'') => format!("invalid character '\\'' {place}"),
        Some(byte) => format!("invalid character '{}' {place}", byte.escape_ascii()),
        None => format!("invalid character '\\n' {place}"),
    }
}
