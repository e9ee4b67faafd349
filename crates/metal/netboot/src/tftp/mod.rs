//! TFTP (RFC 1350) with options (RFC 2347 to 2349) and windows (RFC 7440), read-only.
//!
//! Read [`Transfer`] first: it decides the next packets of a transfer and is pure. [`server`] owns the sockets and
//! opens the files. Write requests are rejected.

mod packet;
mod pending;
pub mod server;
mod transfer;

#[cfg(test)]
mod tests;

pub use packet::{Mode, Packet, ReadRequest};
pub use transfer::{Source, Step, Transfer};
