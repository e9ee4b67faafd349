//! Encodes and decodes Kubernetes' protobuf with the field numbers of the schema table.
//!
//! An object is sent and stored in an envelope: four magic bytes and a `runtime.Unknown` that names its kind. Fields
//! are written in the order of their numbers, and map entries in the order of their keys, as upstream does. Unknown
//! fields are skipped. Zero values of Go's plain fields are omitted, because an absent field means the same.

mod decode;
mod encode;
mod envelope;
mod error;
pub(crate) mod wire;

pub use decode::{from_protobuf, message_to_value};
pub use encode::{to_protobuf, value_to_message};
pub use envelope::{Envelope, envelope, group_version, open};
pub use error::{MAGIC, ProtobufError};

/// Encodes a message with fields of bytes or text, for the few stored kinds without a schema.
pub fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(number, value)| wire::bytes(&mut out, *number, value));
    out
}

/// Returns the last field with a number in a message, if it contains bytes or text.
pub fn field(message: &[u8], field_number: u32) -> Result<Option<&[u8]>, ProtobufError> {
    let malformed = |problem| ProtobufError::Malformed(format!("field {field_number}"), problem);
    let (mut reader, mut found) = (wire::Reader::new(message), None);
    while let Some((number, value)) = reader.next().map_err(malformed)? {
        if let wire::Wire::Bytes(bytes) = value
            && number == field_number
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
