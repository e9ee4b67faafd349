//! The costs of evaluations, in upstream's units.

pub(crate) mod charges;
pub(crate) mod estimates;
mod range;
pub(crate) mod units;

pub use range::Cost;
