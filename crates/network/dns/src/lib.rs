//! Cluster DNS: the functions of CoreDNS in a cluster, configured by the Corefile that kubeadm writes.
//!
//! Plugins that no cluster needs are not implemented. Read [`run()`] first, and `resolver.rs` for the path of a query.
//!
//! Invariants:
//! - Cluster names are answered from memory ([`index`]) without waiting. If the API server fails, answers continue with
//!   the last known state.
//! - Input from clients and upstream servers is parsed with bounds checks and never ends the process. An answer fits
//!   the client's limit or is marked as truncated.
//! - Nothing grows without bound: forwarded queries, TCP connections and the cache have limits.

mod cache;
pub mod corefile;
pub mod flags;
mod forward;
pub mod index;
mod observe;
mod resolver;
mod run;
mod server;
mod wire;
pub mod zone;

pub use flags::Args;
pub use run::{ConnectError, Options, RunError, run};
