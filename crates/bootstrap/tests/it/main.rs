//! Integration tests: what upstream's kubeadm wrote, where it is at hand, and the commands as a user runs them.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

mod commands;
mod etcd;
mod golden;
mod live;
mod openssl;
mod real;
mod server;
