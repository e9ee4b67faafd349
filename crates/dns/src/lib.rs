//! Cluster DNS: what CoreDNS does for a cluster, from the Corefile that kubeadm writes.
//!
//! Invariants:
//! - Cluster names are answered from memory ([`index`]), without waiting for anything; when the API server dies,
//!   answers go on as they were.
//! - What a client or an upstream server sends is parsed with bounds everywhere and never ends the process; an
//!   answer fits what the client can take, or says that it was cut.
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
pub use run::{Options, RunError, run};
