//! Encodes and decodes API objects: stored and sent JSON, YAML, CBOR, protobuf and OpenAPI in protobuf.
//!
//! Read [`splice`] for stored JSON, and [`protobuf`] for the wire format. Validation and defaults belong to `api-rules`
//! and `api-schema`.
//!
//! Invariants: the schema table drives all codecs that need types, and no kind has code of its own. Input is untrusted,
//! so every decoder limits its depth and memory, and returns an error instead of panicking.

pub mod cbor;
#[cfg(test)]
mod fuzzed;
mod json;
pub mod openapi;
pub mod protobuf;
mod yaml;

pub use json::{Form, STORED_PREFIX, TypeMeta, encode_managed, encode_stored, splice, type_meta};
pub use yaml::{YamlDocument, YamlError, from_yaml, to_yaml, yaml_document, yaml_documents};
