//! Helpers of the end-to-end tests: they run the real binary in network namespaces and drive it with the real kubectl
//! and helm. Read [`Session`] first; a test calls [`shared`] to get one.
//!
//! Invariants:
//! - A cluster never changes the machine's own network: its processes and its clients run in a network namespace.
//!   Cgroups and mounts are the machine's, because the kubelet needs them.
//! - A cluster is taken down when the test program ends, even if the program is killed (`teardown.rs`).
//! - Waits are for a condition and have a limit. When the limit is reached, the last observation is printed.
//! - A failed test prints the cluster's logs, Events and timeline, bounded (`diagnostics.rs`).

mod book;
mod cluster;
mod diagnostics;
mod ecosystem;
mod guest;
mod image;
mod kops;
mod kubeadm;
mod locks;
mod machines;
mod manifests;
mod namespace;
mod process;
mod procfs;
mod programs;
mod rack;
mod session;
mod shared;
mod snapshot;
mod teardown;
mod traffic;

pub use book::run_examples;
pub use cluster::{Cluster, processes};
pub use ecosystem::Programs;
pub use guest::Guest;
pub use image::HostImage;
pub use kops::Kops;
pub use kubeadm::{
    Join, configuration, connect, init, install_network, is_etcd_installed, join_commands, ready,
};
pub use locks::{lock_machine, share_machine};
pub use machines::{Host, Machines};
pub use manifests::pod;
pub use process::{Background, Output, fetch_script, parent, until, until_within};
pub use procfs::proportional_size;
pub use programs::{binary, busybox, tool};
pub use rack::{BootMethod, Rack, RunningMachine, TangServer};
pub use session::Session;
pub use shared::{shared, shared_alone};
pub use snapshot::MachineSnapshot;
pub use traffic::{HttpResponse, Report, Traffic, exchange, in_network};
