//! Boots machines from the network: DHCP or proxyDHCP, TFTP, DNS, IPv6 router advertisements and Matchbox's HTTP and
//! gRPC services in one process.
//!
//! Read [`cmd::start`] first; it opens every port. [`matchbox::Matchbox`] answers HTTP requests, [`dhcp::Machine`]
//! decides DHCP replies, and [`machines::Inventory`] records the boot progress of each machine. This crate installs
//! nothing on a machine and powers no machine on or off.
//!
//! Invariants: the servers answer only on the configured interfaces and addresses, and serve no path outside their
//! roots. Everything that an unauthenticated client can make them store is bounded (leases, transfers, template
//! output). Decisions are pure (`dhcp::machine`, `tftp::transfer`, `matchbox::select`); sockets, files and clocks stay
//! at the edge.

pub mod cmd;
pub mod dhcp;
pub mod dns;
mod firmware;
#[cfg(test)]
mod fuzzed;
pub mod interface;
mod journal;
mod labels;
mod lane;
pub mod machines;
pub mod matchbox;
mod metrics;
pub mod openpgp;
mod paths;
pub mod ra;
pub mod tftp;
