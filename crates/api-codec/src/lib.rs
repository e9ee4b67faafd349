//! Objects as bytes: JSON as it is stored and sent, YAML and protobuf.
//!
//! Everything is driven by the schema table; there is no code for any one kind. Inputs come from anyone, so every
//! decoder bounds its depth and answers with an error, never with a panic.

#[cfg(test)]
mod fuzzed;
mod json;
pub mod openapi;
pub mod protobuf;
mod yaml;

pub use json::{Form, STORED_PREFIX, TypeMeta, encode_managed, encode_stored, splice, type_meta};
pub use yaml::{YamlError, from_yaml, to_yaml, yaml_duplicates};
