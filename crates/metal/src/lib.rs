//! What machines need beside being booted: a cluster to join, and someone who presses their power button.
//!
//! Invariant: a certificate is approved only for a node that the store has a machine for, and only where that machine's
//! own last boot asks, by the token that it was given. What is planned
//! (`plan`, `approve`, `power::ipmi::wire`) is pure; sockets, files and clocks stay at the edge.

mod approve;
pub mod cluster;
pub mod enroll;
mod plan;
pub mod power;
mod tokens;
