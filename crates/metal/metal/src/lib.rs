//! Machines as cluster nodes: enrolment, approval of their certificates, and power control through their BMC.
//!
//! Read [`enroll`], [`cluster::Cluster`] and [`power::run`] first. Booting and installing is the task of `netboot` and
//! `firstboot`.
//!
//! Invariant: a certificate is approved only for a node whose machine is in the store, and only with the bootstrap
//! token of that machine's last boot. Plans (`plan`, `approve`, `power::ipmi::wire`) are pure; sockets, files and
//! clocks stay at the edge.

mod approve;
pub mod cluster;
pub mod enroll;
mod plan;
pub mod power;
mod tokens;
