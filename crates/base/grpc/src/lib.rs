//! gRPC over Unix sockets: connections to plugins, runtimes and collectors, and a server for sockets of our own. Read
//! [`channel`] and [`serve`].
//!
//! Not responsible for: messages, timeouts and TLS; callers limit the time of each call.
//!
//! Invariants: a server has at most 64 connections, and it accepts clients that send a path as `:authority`. A client
//! always sends `localhost`.

mod channel;
mod lenient;
mod server;

pub use channel::{channel, connect};
pub use server::serve;
