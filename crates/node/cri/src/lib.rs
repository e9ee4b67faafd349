//! The client of the Container Runtime Interface (CRI) v1, over a Unix socket. Read [`Client`] first.
//!
//! Invariants: every call has a timeout, and an error names the operation and its subject. The connection is made at
//! the first call and again after a restart of the runtime, so a client is never replaced.

mod client;
mod error;

pub use client::{Client, Events};
pub use error::Error;

/// The messages of the protocol, generated from `proto/runtime.proto`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
