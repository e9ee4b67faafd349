//! The kernel's network configuration: links, addresses, routes, neighbours, conntrack entries, nftables and iptables.
//! Start with the trait [`Net`]. [`Kernel`] implements it for one network namespace, and [`Fake`] records calls for
//! tests.
//!
//! Synchronous and small, because a CNI plugin runs for a few milliseconds and the daemons rarely change the network.
//! Not responsible for the contents of tables and chains, which are in `net_core`.
//!
//! Invariants:
//! - A [`Kernel`] acts on the namespace in which it was opened, in whichever thread it is used. Only nftables and
//!   listening sockets use the caller's namespace.
//! - Operations that add are idempotent if the kernel can distinguish a repetition from a conflict.
//! - nftables is only changed by whole transactions.

mod conntrack;
mod error;
mod fake;
#[cfg(test)]
mod fuzzed;
mod iptables;
mod kernel;
mod link;
mod listeners;
mod namespace;
mod net;
mod nft;
mod route;
mod socket;
mod sysctl;
mod table;
mod traffic;
mod wire;
mod xtables;

pub use error::{Error, NftError, XtablesError};
pub use fake::Fake;
pub use kernel::Kernel;
pub use namespace::Namespace;
pub use net::{Address, Link, LinkChange, Neighbour, Net, NewKind, NewLink, RateLimit, Route};
pub use nft::has_nft;
pub use sysctl::{has_ipv6, refuse_routes, set_sysctl};
pub use table::{TableWriter, WriteStats};
pub use xtables::{ChainWriter, Iptables, Xtables};
