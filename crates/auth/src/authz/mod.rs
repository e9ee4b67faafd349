//! Whether a user may do what a request asks.

pub mod node;
pub mod review;
pub mod union;
