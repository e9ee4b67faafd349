//! The kubelet's HTTPS server: logs, exec, attach, port-forward, metrics and statistics. The API server authenticates
//! and authorizes its clients. It computes no statistics; `kubelet-stats` does. Read [`start`] first.
//!
//! Invariants:
//! - Every request to the HTTPS port is authenticated and authorized before it is routed. The ports without TLS serve
//!   health, and the read-only port also Pods, metrics and statistics.
//! - `/logs` serves no file outside of `/var/log`, even if a link leads there.
//! - The runtime's server does the work of exec, attach and port-forward. The kubelet only joins the two connections.

mod auth;
mod backend;
mod checkpoint;
mod error;
mod frames;
#[cfg(test)]
mod fuzzed;
mod idle;
mod info;
mod logs;
mod pages;
mod protocol;
mod query;
mod response;
mod server;
mod spdy;
mod stats;
mod stream;
mod system_logs;
mod tls;
mod websocket;

pub use backend::Backend;
pub use error::ServerError;
pub use server::start;
