//! The schemas of all built-in and custom kinds, for JSON, protobuf and in-memory trees. Read [`Schema`] and [`Node`]
//! first.
//!
//! Pruning, defaulting, structural validation, strategic merge, server-side apply, protobuf, OpenAPI and `kubectl
//! explain` use these schemas. Objects are `serde_json::Value` trees. Built-in kinds share one arena
//! ([`Schema::builtin`]). Each version of a custom resource has its own arena, built from its `openAPIV3Schema`, with
//! the same node types.
//!
//! Invariants: a tree from [`decode()`] has no `null` outside of free-form values, no unknown members (unless the
//! schema preserves them), and scalars in upstream's canonical text. This crate uses no clock, no network and no tasks.

mod builtin;
mod conversions;
mod crd;
mod decode;
mod fill;
mod formats;
#[cfg(test)]
mod fuzzed;
mod gowords;
mod lookup;
mod node;
pub mod openapi;
mod resources;
mod rules;
mod scalar;
mod schema;
mod structural;
mod validate;

pub use conversions::{Conversion, conversion};
pub use decode::{
    DecodeError, Decoded, Finding, TypeError, decode, decode_untyped, decode_value, prune,
};
pub use fill::{Fill, apply_defaults, apply_member_defaults, write_nulls};
pub use node::{
    Field, ListType, Lookup, Node, NodeId, Patch, Pattern, Presence, ProtoPath, Rules, Shape,
    Struct,
};
pub use resources::{ApiResource, Subresource, resource, resources, returns_deleted};
pub use rules::declared;
pub use schema::{Kind, Schema};
pub use validate::{validate, validate_rules};
