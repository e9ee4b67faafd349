//! Integration tests: golden files of kubeadm, if present, and the commands as a user runs them.

// Helpers of tests may panic.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod commands;
mod etcd;
mod golden;
mod live;
mod openssl;
mod real;
mod server;
mod upgrade;
