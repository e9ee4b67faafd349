//! Clusters to try things on: the real binary in a network namespace of its own, driven by real kubectl and helm.
//!
//! Invariants:
//! - A cluster never touches the machine's own network: its processes, and the commands that talk to it, run in a
//!   namespace made for it. Only the network is apart, because the kubelet needs the machine's cgroups and mounts.
//! - A cluster is taken down when the test program ends, however it ends: a process that waits for that does it, and
//!   if that is killed too, the next test program does.
//! - Waiting is for a condition, with a limit, and what was seen last is shown when the limit is reached.
//! - A failed test prints the cluster's logs, Events and timeline, bounded (`diagnostics.rs`).

mod cluster;
mod diagnostics;
mod guest;
mod kops;
mod kubeadm;
mod machine;
mod machines;
mod namespace;
mod process;
mod rack;
mod session;
mod steady;
mod taker;

pub use cluster::{Cluster, alone, beside_others, binary, shared, shared_alone};
pub use guest::Guest;
pub use kops::Kops;
pub use kubeadm::{Join, configuration, connect, init, is_etcd_there, join_by, ready};
pub use machine::{Machine, processes, proportional_size};
pub use machines::{Host, Machines};
pub use process::{Background, Ran, asking, parent, until, until_within};
pub use rack::{Boots, Powered, Rack};
pub use session::Session;
pub use steady::{Answer, Report, Steady, exchange, inside};
