//! What a node does with a Pod, decided and not done: the kubelet's pure core.
//!
//! [`plan`] takes a Pod's spec, what the runtime has of it, what probes found and what was tried before, and says
//! what to do next; [`status`] says what to report. The other modules compute what a container is given: its
//! environment, resources, names and files.
//!
//! Invariants: no clock, socket, task or global; the time is an argument. A plan for a Pod that is as it should be
//! has no steps, so a restarted kubelet restarts nothing.

pub mod admit;
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
pub mod numa_memory;
mod observed;
mod phase;
mod plan;
pub mod probe;
mod qos;
pub mod resize;
pub mod resources;
pub mod services;
mod spec;
mod status;
mod stop;
mod time;
pub mod topology;

pub use memory::{Failure, FailureKind, Memory};
pub use observed::{Container, Observed, Run, Sandbox};
pub use phase::Phase;
pub use plan::{Ending, Inputs, Plan, Step, Why, plan};
pub use probe::{Health, Verdicts};
pub use qos::{QosClass, qos_class};
pub use spec::{
    Member, Role, Verdict, container_hash, is_static, members, namespaced_name, should_restart,
};
pub use status::{StatusInputs, is_kubelets, refused, status};
pub use stop::{grace_period, stop_stages};
pub use time::{Timestamp, after, go_duration};

#[cfg(test)]
mod tests;
