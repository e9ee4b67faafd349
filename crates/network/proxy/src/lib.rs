//! kube-proxy: converts Services and EndpointSlices to rules of the node, for nftables or iptables.
//!
//! The rules themselves are planned by [`net_core::plan`]. Read [`run()`] first.
//!
//! Invariants:
//! - The plan is pure. This crate watches the API, collects changes for a short time, and writes the difference in one
//!   transaction ([`Syncer`]).
//! - A restart drops no connection and, without changes, writes nothing. Stopping leaves the rules: the node continues
//!   to serve the last known state.
//! - No rule takes an address and port from a program of the node or from the API server ([`net_core::claims`]).
//!   Refused claims are reported in the log and in an Event of the Service.
//! - Flags and configuration are upstream's. An unsupported setting that affects security prevents the start; others
//!   are accepted with a warning ([`flags`]).

mod config;
mod conntrack;
mod error;
pub mod flags;
mod health;
mod host;
mod run;
mod sync;

pub use config::{Mode, Settings};
pub use error::ConfigError;
pub use flags::Args;
pub use run::{RunError, run, unroute_localhost};
pub use sync::{
    Report, SyncError, Syncer, clean_up, guards_loopback, remove_chains, remove_tables,
};
