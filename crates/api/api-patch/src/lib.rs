//! Patches of JSON trees: JSON patch, JSON merge patch, strategic merge patch and server-side apply. Read [`apply()`]
//! and [`update()`] first.
//!
//! Everything is pure: a patch takes trees, and the schema where merging depends on types, and returns a tree.
//! Invariants:
//! - A failed patch returns an error and no partial result that a caller could use.
//! - The time in `managedFields` is an argument.
//! - A write without a change leaves `managedFields` unchanged, including the times.

mod apply;
mod configuration;
mod conflict;
mod context;
mod error;
mod fieldset;
#[cfg(test)]
mod fuzzed;
mod json;
mod last_applied;
mod managed;
mod scale;
mod strategic;
#[cfg(test)]
mod testing;
mod typed;
mod update;
mod versions;

pub use apply::{ApplyError, apply};
pub use configuration::{ConfigurationError, merge_configuration};
pub use conflict::{Conflict, Conflicts};
pub use context::{Context, Versions};
pub use error::{PatchError, go_print, json_word};
pub use fieldset::{FieldSet, FieldSetError};
pub use json::{MAX_JSON_PATCH_OPERATIONS, json_patch, json_patch_tree, merge_patch};
pub use scale::{owners_in_parent, owners_in_scale};
pub use strategic::strategic;
pub use update::{created, update};
