//! The controls of the Pod Security Standards. Each is a function that returns a Pod's violation, if any.

mod baseline;
mod check;
mod containers;
mod restricted;

pub(super) use baseline::BASELINE;
pub(super) use check::{Check, Violation};
pub(super) use restricted::RESTRICTED;
