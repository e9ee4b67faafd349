//! The kubelet's clients for storage drivers, over Unix sockets: the node service of the Container Storage Interface
//! (CSI) v1, and the registration of plugins. Read [`Driver`] first.
//!
//! Invariants: every call has a timeout, and responses are limited to gRPC's 4 MiB. The connection is made at the first
//! call and again after a restart of the driver, so a client is never replaced.

mod connection;
mod driver;
mod error;
mod registrar;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod registration;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod v1;

pub use connection::{TIMEOUT, within};
pub use driver::{Capabilities, Driver, Usage, VolumeStats};
pub use error::{Error, shorten};
pub use registrar::Registrar;
