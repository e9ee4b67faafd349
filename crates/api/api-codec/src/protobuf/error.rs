//! The error of the protobuf codec.

use api_meta::BudgetExceeded;

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
    #[error("encoding {path}: a {found} cannot be written as {expected}")]
    Mismatch { path: String, found: &'static str, expected: &'static str },
}
