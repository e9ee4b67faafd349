//! Tests of real clients against the servers, in network namespaces.
//!
//! They need root, and `unshare`, `nsenter`, `ip`, `busybox`, `curl` and `tftp` (tftp-hpa). The machine that boots also
//! needs QEMU. Each test runs itself again in a new network namespace.

// A panic in a helper fails the test.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod boot;
mod clients;
mod flood;
mod rpc;
mod safety;
mod web;
mod world;
