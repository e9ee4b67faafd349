//! Records of machines: boot stage, times, last failure, and whether the machine is installed.
//!
//! Read [`Registry`] first: it decides the effect of an [`Event`] and is pure. [`Inventory`] shares a registry between
//! the servers and saves it. The number of machines, the timeline entries and the text lengths are bounded, because
//! unauthenticated clients cause the events.

mod inventory;
pub mod page;
mod registry;
mod stage;
pub mod status;

#[cfg(test)]
mod tests;

pub use inventory::{AccessError, Inventory};
pub use registry::{Entry, Event, Facts, Failure, Machine, Registry};
pub use stage::{Outcome, Stage};
