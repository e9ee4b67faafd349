//! What is known of every machine: how far it has come, when, what failed, and whether it is installed.
//!
//! [`Registry`] decides what a note means and is pure; [`Book`] keeps it over restarts and is what the servers
//! write to. What strangers can make it hold is bounded: machines, entries of a timeline, lengths of texts.

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
