//! The client side of the Container Runtime Interface, v1, over a unix socket.
//!
//! Invariants: every call has a deadline; an error names the operation and its subject; the connection is made
//! when first needed and made again after the runtime was restarted, so a client never has to be replaced.

mod client;
mod error;

pub use client::{Client, Events};
pub use error::Error;

/// The messages of the protocol, generated from `proto/runtime.proto`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
