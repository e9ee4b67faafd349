//! Resource usage of the node, its Pods and their containers, for Prometheus, metrics-server and `kubectl`. It serves
//! nothing itself; `kubelet-server` does. Read [`Stats`] first.
//!
//! Invariants:
//! - Cgroups are read on request and at most once a second. All endpoints use the same reading, and concurrent
//!   requests wait for one that is in progress.
//! - The disk usage of volumes and logs is measured at most once a minute. A volume's server that does not answer
//!   delays no request.

mod cadvisor;
mod disk;
mod error;
mod host;
mod kubelet;
mod machine;
mod probes;
mod reading;
mod resource;
mod servers;
mod sources;
mod stats;
mod storage;
mod summary;

pub use disk::{FileUsage, disk_usage, file_usage};
pub use error::StatsError;
pub use machine::Machine;
pub use probes::{ProbeLabels, Probes};
pub use sources::StatsSources;
pub use stats::{Page, Stats};
