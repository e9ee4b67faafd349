//! The kubelet's HTTPS server: logs, exec, attach, port-forward, metrics and statistics. The API server authenticates
//! and authorizes its clients. It computes no statistics; `kubelet-stats` does. Read [`start`] first.

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
