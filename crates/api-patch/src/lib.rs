//! Patches on object trees: JSON patch, JSON merge patch, strategic merge patch and server-side apply.
//!
//! Everything here is pure: a patch takes trees (and, where merging depends on types, the schema) and gives a
//! tree. Invariants:
//! - A patch that fails leaves no half-patched object behind: callers get an error and keep what they had.
//! - The time written into `managedFields` comes in as an argument.
//! - A write that changes nothing changes no `managedFields` entry, its time included.

mod apply;
mod configuration;
mod error;
mod fieldset;
#[cfg(test)]
mod fuzzed;
mod json;
mod last_applied;
mod managed;
mod strategic;
#[cfg(test)]
mod testing;
mod typed;
mod update;
mod versions;

pub use apply::{ApplyError, Conflict, Conflicts, apply};
pub use configuration::{ConfigurationError, merge_configuration};
pub use error::PatchError;
pub use fieldset::{FieldSet, FieldSetError};
pub use json::{MAX_JSON_PATCH_OPERATIONS, json_patch, merge_patch};
pub use strategic::strategic;
pub use update::{Context, created, update};
pub use versions::Versions;
