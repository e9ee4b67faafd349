//! Real clients against the servers, in network namespaces of their own.
//!
//! They need root, and `unshare`, `nsenter`, `ip`, `busybox`, `curl` and `tftp` (tftp-hpa); the machine that
//! boots needs QEMU too. Each test runs itself again in a new network namespace.

// What goes wrong here is the test's failure.
#![allow(clippy::unwrap_used)]

mod boot;
mod clients;
mod flood;
mod rpc;
mod safety;
mod web;
mod world;
