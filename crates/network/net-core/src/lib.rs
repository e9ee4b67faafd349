//! The desired state of a node's network as values: Service rules, policies, routes and address allocation.
//!
//! Nothing here reads a clock or changes the kernel; the crates `proxy`, `cni` and `podnet` apply the plans. Read
//! [`plan::plan`] first, which builds the table of Service rules.
//!
//! Invariants:
//! - All functions are pure: snapshots of API objects go in, tables and plans come out.
//! - A table has one canonical value. Equal values cause no writes, and the difference of two values is one transaction
//!   that changes only what differs ([`nft`]).

pub mod api;
pub mod claims;
pub mod conntrack;
#[cfg(test)]
mod cves;
pub mod endpoints;
pub mod ipam;
mod mac;
pub mod nft;
pub mod overlay;
pub mod plan;
pub mod policy;
mod seal;
pub mod xtables;

pub use api_meta::{Cidr, CidrError, Family};
pub use mac::derived_mac;
