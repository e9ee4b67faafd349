//! Envelopes, which name the kind of an encoded object.

use api_schema::{NodeId, Schema};

use super::{
    error::{MAGIC, ProtobufError},
    wire,
};

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

/// Returns the schema of the kind that an envelope names.
pub(super) fn node_of(
    schema: &Schema,
    api_version: &str,
    kind: &str,
) -> Result<NodeId, ProtobufError> {
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
    let malformed = |problem| ProtobufError::Malformed("runtime.Unknown".to_owned(), problem);
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
