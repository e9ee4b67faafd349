//! The pure core of the kubelet: decides what a node does with a Pod, and does no I/O. The `kubelet` crate executes the
//! decisions.
//!
//! Read [`plan()`] first. From a Pod's spec, its observed containers, probe results and earlier failures, it computes
//! the next steps. [`status()`] computes the status to report. The other modules compute admission, allocations, and a
//! container's environment, resources, names and files.
//!
//! Invariants:
//! - The crate uses no clock, socket, task or global state. The current time is an argument.
//! - The plan of a Pod in its desired state has no steps, so a restarted kubelet restarts nothing.

pub mod admit;
mod amounts;
pub mod cgroups;
mod checkpoint;
pub mod claims;
pub mod cpus;
pub mod devices;
pub mod dns;
pub mod env;
pub mod env_file;
pub mod evict;
pub mod features;
pub mod fields;
pub mod files;
pub mod hosts;
pub mod huge_pages;
mod memory;
pub mod memory_limits;
pub mod numa_memory;
mod observed;
pub mod paths;
mod phase;
mod plan;
pub mod probe;
mod qos;
mod refusal;
mod registry;
pub mod resize;
pub mod resources;
mod restart_all;
pub mod services;
mod spec;
mod status;
mod step;
mod stop;
mod time;
pub mod topology;
pub mod user_namespaces;

pub use checkpoint::{ChecksumError, PolicyError};
pub use memory::{Failure, FailureKind, Memory};
pub use observed::{Container, Observed, Run, Sandbox};
pub use phase::Phase;
pub use plan::{Ending, Inputs, Plan, plan};
pub use probe::{Health, Verdicts};
pub use qos::{QosClass, qos_class};
pub use registry::{KnownPod, PodRegistry, RunningContainer};
pub use spec::{
    Member, Role, Verdict, container_hash, is_static, log_name, members, namespaced_name,
    should_restart,
};
pub use status::{StatusInputs, is_kubelets, pod_ips, refused_status, status};
pub use step::{KillReason, Step};
pub use stop::{grace_period, stop_stages};
pub use time::{Timestamp, after, from_nanos, go_duration, timestamp};

#[cfg(test)]
mod tests;
