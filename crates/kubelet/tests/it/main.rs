//! The kubelet on a container runtime of its own: each test starts a containerd and leaves nothing behind.
//!
//! They need root, containerd, runc, and busybox as a static binary.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails by panicking, and helpers are tests too.

mod api;
mod isolation;
mod life;
mod memory;
mod metrics;
mod node;
mod panics;
mod server;
mod statics;
mod subpath;
mod vulnerabilities;
