//! Tests of the kubelet on a containerd of its own, which each test starts and removes.
//!
//! They need root, containerd, runc, and busybox as a static binary.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails by panicking, and helpers are tests too.

mod api;
mod cloud;
mod image_volumes;
mod isolation;
mod life;
mod memory;
mod metrics;
mod node;
mod panics;
mod resize;
mod server;
mod statics;
mod subpath;
mod users;
mod vulnerabilities;
