//! Cluster DNS: the functions of CoreDNS in a cluster, configured by the Corefile that kubeadm writes.
//!
//! Read [`run()`] first, then `resolver.rs` and `chain.rs` for the path of a query. Each plugin is a file of `plugin/`
//! that parses its options and answers or changes queries. Plugins that this server does not have are rejected.
//!
//! Invariants:
//! - Cluster names are answered from memory ([`index`]) without waiting. If the API server fails, answers continue with
//!   the last known state.
//! - Input from clients and upstream servers is parsed with bounds checks and never ends the process. An answer fits
//!   the client's limit or is marked as truncated.
//! - Nothing grows without bound: forwarded queries, TCP connections and the cache have limits.

mod chain;
mod cluster;
mod corefile;
mod directive;
pub mod flags;
pub mod index;
mod observe;
pub mod options;
mod plugin;
mod records;
mod resolver;
mod run;
mod server;
mod wire;
pub mod zone;
mod zonefile;

pub use cluster::{ClusterError, ConnectError};
pub use corefile::{Migration, check as check_corefile, migrate as migrate_corefile};
pub use directive::{CorefileError, Fallthrough};
pub use flags::Args;
pub use run::{Options, RunError, run};
