//! kube-proxy: Services and EndpointSlices of the API become rules of the node, for nftables or iptables.
//!
//! Invariants:
//! - The plan is pure ([`net_core::plan`]); this crate watches, waits a little so that changes come together,
//!   and writes the difference in one transaction ([`Syncer`]).
//! - A restart drops no connection and, where nothing changed meanwhile, writes nothing. Stopping leaves the
//!   rules: the node goes on serving with what was last known.
//! - No rule takes an address and port from a program of the node or from the API ([`net_core::claims`]). What is
//!   refused stands in the log and in an Event of the Service.
//! - Flags and configuration are upstream's. What would change security stops the start if it is not acted on;
//!   the rest is accepted with a warning that says why ([`flags`]).

mod config;
pub mod flags;
mod health;
mod host;
mod run;
mod sync;

pub use config::{ConfigError, Mode, Settings};
pub use flags::Args;
pub use run::{RunError, run, unroute_localhost};
pub use sync::{
    Report, SyncError, Syncer, clean_up, guards_loopback, remove_chains, remove_tables,
};
