//! Records of machines: boot stage, times, last failure, and whether the machine is installed.
//!
//! Read [`Registry`] first: it decides the effect of a [`Note`] and is pure. [`Book`] shares a registry between the
//! servers and saves it. The number of machines, the timeline entries and the text lengths are bounded, because
//! unauthenticated clients cause the notes.

mod book;
pub mod page;
mod registry;
mod stage;
pub mod status;

#[cfg(test)]
mod tests;

pub use book::{Book, Refusal};
pub use registry::{Entry, Facts, Failure, Machine, Note, Registry};
pub use stage::{Outcome, Stage};
