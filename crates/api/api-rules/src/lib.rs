//! The per-kind rules beyond the schema: conditional defaults, preparation of writes, validation, field selectors and
//! table cells.
//!
//! Every kind has a [`Strategy`], which is mostly data. Read it first. Kinds that need code have a file under `kinds`,
//! and [`strategy()`] finds the strategy of a resource. Invariants:
//! - All functions are pure: a strategy gets objects, and the time of the request as an argument.
//! - Objects are decoded by the schema, with its constant defaults and Go's zero values filled in.
//! - Messages are upstream's, because users and programs match on them.

pub mod amounts;
mod conditions;
pub mod cron;
mod disabled_fields;
pub mod expressions;
mod fields;
#[cfg(test)]
mod fuzzed;
mod gated_fields;
mod kinds;
mod meta;
mod pod;
pub mod quota;
mod signers;
mod strategy;
pub mod table;
mod warnings;

pub use gated_fields::{drop_coordinated_fields, drop_projected_sources, drop_scheduling_group};
pub use kinds::{CLEANUP, PartPaths, api_approval, service, strategy};
pub use meta::NameRule;
pub use pod::security::refuse_privileged;
pub use pod::{check_node_affinity, is_extended_resource};
pub use strategy::{Cleanup, Selectable, Strategy, Subresource};
