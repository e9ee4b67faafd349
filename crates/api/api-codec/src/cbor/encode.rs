//! Encodes trees as CBOR.

use ciborium_ll::{Encoder, Header, simple};
use serde_json::{Number, Value};

/// The tag of self-described CBOR (RFC 8949 §3.4.6).
const SELF_DESCRIBED: u64 = 55_799;

/// Writes to a vector, which cannot fail.
type Output<'a> = Encoder<&'a mut Vec<u8>>;

/// Encodes a tree.
pub fn to_cbor(tree: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::from(&mut out);
    push(&mut encoder, Header::Tag(SELF_DESCRIBED));
    write(&mut encoder, tree);
    out
}

/// Encodes the event of a watch. The events of a watch follow each other without separators (RFC 8742).
pub fn watch_event(kind: &str, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::from(&mut out);
    push(&mut encoder, Header::Tag(SELF_DESCRIBED));
    push(&mut encoder, Header::Map(Some(2)));
    string(&mut encoder, "type");
    string(&mut encoder, kind);
    string(&mut encoder, "object");
    push(&mut encoder, Header::Tag(SELF_DESCRIBED));
    write(&mut encoder, object);
    out
}

fn push(encoder: &mut Output<'_>, header: Header) {
    let _infallible = encoder.push(header);
}

fn string(encoder: &mut Output<'_>, text: &str) {
    let _infallible = encoder.bytes(text.as_bytes(), None);
}

fn write(encoder: &mut Output<'_>, tree: &Value) {
    match tree {
        Value::Null => push(encoder, Header::Simple(simple::NULL)),
        Value::Bool(false) => push(encoder, Header::Simple(simple::FALSE)),
        Value::Bool(true) => push(encoder, Header::Simple(simple::TRUE)),
        Value::Number(number) => push(encoder, header(number)),
        Value::String(text) => string(encoder, text),
        Value::Array(items) => {
            push(encoder, Header::Array(Some(items.len())));
            items.iter().for_each(|item| write(encoder, item));
        }
        Value::Object(members) => {
            push(encoder, Header::Map(Some(members.len())));
            let mut members: Vec<_> = members.iter().collect();
            // The order of the encoded keys, which begin with their length.
            members.sort_unstable_by_key(|(key, _)| (key.len(), key.as_bytes()));
            for (key, value) in members {
                string(encoder, key);
                write(encoder, value);
            }
        }
    }
}

fn header(number: &Number) -> Header {
    match (number.as_u64(), number.as_i64()) {
        (Some(positive), _) => Header::Positive(positive),
        (None, Some(negative)) => Header::Negative(!negative.cast_unsigned()),
        (None, None) => Header::Float(number.as_f64().unwrap_or_default()),
    }
}
