//! The client of the Container Runtime Interface (CRI) v1, over a Unix socket, and readers of the objects and logs that
//! a runtime keeps for the kubelet. Also a runtime in memory, for simulated nodes ([`memory`]). Read [`Client`] first.
//!
//! Invariants: every call has a timeout, and an error names the operation and its subject. The connection is made at
//! the first call and again after a restart of the runtime, so a client is never replaced.

mod client;
mod error;
pub mod labels;
pub mod log;
pub mod memory;
mod pods;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod v1;

pub use client::{Client, Events};
pub use error::Error;
pub use pods::{RuntimeObject, RuntimePod};
