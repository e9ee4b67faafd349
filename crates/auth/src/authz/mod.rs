//! Whether a user may do what a request asks.

pub mod abac;
pub mod node;
pub mod review;
pub mod simple;
pub mod validation;
pub mod webhook;
