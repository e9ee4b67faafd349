//! Encodes and decodes Kubernetes' protobuf with the field numbers of the schema table.
//!
//! An object is sent and stored in an envelope: four magic bytes and a `runtime.Unknown` that names its kind. Fields
//! are written in the order of their numbers, and map entries in the order of their keys, as upstream does. Unknown
//! fields are skipped. Zero values of Go's plain fields are omitted, because an absent field means the same.

use api_meta::{Budget, BudgetExceeded};
use api_schema::{NodeId, Schema};
use serde_json::Value;

mod decode;
mod encode;
pub(crate) mod wire;

pub use decode::message_to_value;
pub use encode::value_to_message;

/// The bytes that an enveloped object begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// The error of decoding or encoding an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}")]
    NoMagic,
    #[error("malformed protobuf in {0}: {1}")]
    Malformed(String, &'static str),
    #[error(transparent)]
    Exceeded(#[from] BudgetExceeded),
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    #[error("encoding {path}: a {found} cannot be written as {wanted}")]
    Mismatch { path: String, found: &'static str, wanted: &'static str },
}

/// A decoded envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The apiVersion of the object.
    pub api_version: &'a str,
    /// The kind of the object.
    pub kind: &'a str,
    /// The encoded message.
    pub raw: &'a [u8],
}

/// Splits `group/version`. The core group has an empty group.
pub fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

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

/// Decodes an enveloped object of a built-in kind. The tree has kind and apiVersion, and otherwise only the encoded
/// fields. Pass it through [`api_schema::decode_value`] for Go's zero values and for defaults.
pub fn from_protobuf(schema: &Schema, bytes: &[u8]) -> Result<Value, ProtobufError> {
    read(schema, bytes, &mut Budget::object())
}

fn read(schema: &Schema, bytes: &[u8], budget: &mut Budget) -> Result<Value, ProtobufError> {
    let Envelope { api_version, kind, raw } = open(bytes)?;
    let node = node_of(schema, api_version, kind)?;
    let mut value = decode::message_within(schema, node, raw, budget)?;
    if let Some(members) = value.as_object_mut() {
        members.insert("apiVersion".to_owned(), api_version.into());
        members.insert("kind".to_owned(), kind.into());
    }
    Ok(value)
}

fn node_of(schema: &Schema, api_version: &str, kind: &str) -> Result<NodeId, ProtobufError> {
    let (group, version) = group_version(api_version);
    schema.kind(group, version, kind).ok_or_else(|| ProtobufError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    })
}

/// Puts a message in an envelope.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + api_version.len() + kind.len() + 24);
    out.extend_from_slice(MAGIC);
    wire::nested(&mut out, 1, |out| {
        wire::bytes(out, 1, api_version.as_bytes());
        wire::bytes(out, 2, kind.as_bytes());
    });
    wire::bytes(&mut out, 2, raw);
    // The content encoding and content type, which upstream writes although they are empty.
    wire::bytes(&mut out, 3, b"");
    wire::bytes(&mut out, 4, b"");
    out
}

/// Decodes an envelope.
pub fn open(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?;
    let malformed = |what| ProtobufError::Malformed("runtime.Unknown".to_owned(), what);
    let mut envelope = Envelope { api_version: "", kind: "", raw: &[] };
    let mut reader = wire::Reader::new(rest);
    while let Some((number, value)) = reader.next().map_err(malformed)? {
        match (number, value) {
            (1, wire::Wire::Bytes(meta)) => {
                let mut reader = wire::Reader::new(meta);
                while let Some((number, value)) = reader.next().map_err(malformed)? {
                    let wire::Wire::Bytes(text) = value else { continue };
                    let text =
                        std::str::from_utf8(text).map_err(|_| malformed("text is not UTF-8"))?;
                    match number {
                        1 => envelope.api_version = text,
                        2 => envelope.kind = text,
                        _ => {}
                    }
                }
            }
            (2, wire::Wire::Bytes(raw)) => envelope.raw = raw,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Encodes a message with fields of bytes or text, for the few stored kinds without a schema.
pub fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(number, value)| wire::bytes(&mut out, *number, value));
    out
}

/// Returns the last field with a number in a message, if it contains bytes or text.
pub fn field(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, ProtobufError> {
    let malformed = |what| ProtobufError::Malformed(format!("field {wanted}"), what);
    let (mut reader, mut found) = (wire::Reader::new(message), None);
    while let Some((number, value)) = reader.next().map_err(malformed)? {
        if let wire::Wire::Bytes(bytes) = value
            && number == wanted
        {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// Encodes one frame of a watch: a four-byte length, then a `WatchEvent` with an enveloped object.
pub fn watch_frame(event_type: &str, enveloped: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(enveloped.len() + 32);
    out.extend_from_slice(&[0; 4]);
    wire::bytes(&mut out, 1, event_type.as_bytes());
    wire::nested(&mut out, 2, |out| wire::bytes(out, 1, enveloped));
    // A frame is limited by the maximum object size, far below 4 GiB.
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

#[cfg(test)]
mod tests;
