//! An nftables table as a value, and the transactions that turn one value into another.
//!
//! Invariants:
//! - [`diff`] changes only the chains and elements that differ. It orders its steps by the kernel's reference counts:
//!   an object is created before and deleted after the objects that refer to it.
//! - The elements of a dynamic set belong to the kernel (client affinity). No step removes them while the set exists.
//! - A sealed table carries the digest of its content in a separate chain ([`STATE_CHAIN`]), so that a restarted
//!   process sees that nothing changed and writes nothing.

mod ops;
mod table;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use ops::{InstalledTable, Op, Transaction, create, diff, resync};
pub use table::{Chain, Content, STATE_CHAIN, Set, Table};
pub(crate) use table::{address_type, bounded_name, digest};
