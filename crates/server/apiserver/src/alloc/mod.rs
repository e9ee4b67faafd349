//! Allocates cluster IPs and node ports. Start with [`Allocators`]; [`Allocation`] is the result for one write.
//!
//! Invariants:
//! - The store decides, because several API servers may share it. Creating an IPAddress allocates an address; a
//!   compare-and-swap of upstream's bitmap allocates a port.
//! - Allocation precedes the write of the Service. After a crash in between, the repair
//!   ([`crate::reconcilers::service_repair`]) releases it.
//! - Memory holds only hints about where to try first.

pub(crate) mod address;
mod allocation;
mod allocators;
pub(crate) mod bitmap;
mod hints;
mod pool;
pub(crate) mod ports;
mod range;
pub(crate) mod service;

pub(crate) use self::{allocation::Allocation, allocators::Allocators, hints::Hints, pool::Pool};
