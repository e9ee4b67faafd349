//! What the node's network should look like, as values: Service rules, address allocation.
//!
//! Invariants:
//! - Pure. Snapshots of API objects come in, tables and plans go out; nothing here reads a clock or touches
//!   the kernel.
//! - A table has one canonical value. Two equal values write nothing, and the difference of two values is one
//!   transaction that touches only what differs ([`nft`]).

pub mod api;
pub mod claims;
pub mod conntrack;
#[cfg(test)]
mod cves;
pub mod endpoints;
pub mod ipam;
pub mod nft;
pub mod overlay;
pub mod plan;
pub mod policy;
pub mod xtables;

pub use api_meta::{Cidr, CidrError, Family};
