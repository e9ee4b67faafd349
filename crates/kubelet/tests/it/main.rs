//! The kubelet on a container runtime of its own: each test starts a containerd and leaves nothing behind.
//!
//! They need root, containerd, runc, and busybox as a static binary.

mod api;
mod node;
mod server;
mod statics;
