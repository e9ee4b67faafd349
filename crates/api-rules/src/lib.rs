//! What a kind does beyond its schema: conditional defaults, what a write may touch, validation, field selectors
//! and table cells.
//!
//! Every kind has a [`Strategy`], most of it data; the few that need code have a small file under `kinds`, all
//! listed in one [`registry`](strategy). Invariants:
//! - Everything is pure: a strategy sees objects, and the time of the request as an argument.
//! - Objects come decoded by the schema, with its constant defaults and Go's zero values filled in.
//! - Messages are upstream's, since people and programs match on them.

pub mod amounts;
pub mod cron;
pub mod expressions;
mod fields;
#[cfg(test)]
mod fuzzed;
mod kinds;
mod meta;
mod pod;
pub mod quota;
mod strategy;
pub mod table;
mod warnings;

pub use kinds::{CLEANUP, PartPaths, api_approval, service, strategy};
pub use meta::NameRule;
pub use pod::check_node_affinity;
pub use pod::security::refuse_privileged;
pub use strategy::{Cleanup, Selectable, Strategy, Subresource};
