//! Booting machines from the network: DHCP, TFTP, DNS and Matchbox's HTTP service in one.
//!
//! Invariants: it answers only on interfaces and addresses that it was told; it serves no path outside its
//! roots; what a stranger can make it hold (leases, transfers, template output) is bounded. Decisions are
//! pure (`dhcp::machine`, `tftp::transfer`, `matchbox::select`): sockets, files and clocks stay at the edge.

pub mod cmd;
pub mod dhcp;
pub mod dns;
#[cfg(test)]
mod fuzzed;
pub mod interface;
mod journal;
mod lane;
pub mod machines;
pub mod matchbox;
mod metrics;
pub mod openpgp;
mod paths;
mod places;
pub mod ra;
pub mod tftp;
