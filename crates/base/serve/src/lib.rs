//! HTTP/1.1 and HTTP/2 over TLS for every component that listens, with upgrades, and DNS over TCP. Start with [`serve`]
//! and [`Handler`]. Not responsible for routing and authentication.
//!
//! Invariants:
//! - The number of connections is limited, in total and by source. Idle connections are closed after a while, or
//!   earlier if their slots are needed.
//! - Every connection is a task that its owner can drain.
//! - An invalid client certificate does not fail the handshake, because Kubernetes responds with 401. The handler
//!   receives the unverified certificates ([`Connection`]) and authentication verifies them.

mod body;
mod client_certificate;
mod client_limits;
pub mod dns;
mod handler;
mod limits;
mod panic_guard;
mod policy;
mod server;
mod slot_stream;
mod slots;
mod tls;
pub mod websocket;

pub use body::{Body, BodyWithGuard, BoxError, full};
pub use client_limits::{ClientLimits, ClientPermit};
pub use handler::{Connection, Handler, answer};
pub use limits::Limits;
pub use panic_guard::handle_guarded;
pub use policy::{PolicyError, TlsPolicy};
pub use server::{accept, serve, serve_stream};
pub use slots::{ConnectionActivity, Standing};
pub use tls::{KeyPairFiles, NamedCertificate, ServerTls, TlsError};
