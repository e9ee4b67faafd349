//! The kubelet: runs the Pods of one node by means of a container runtime (CRI), and reports their and the node's
//! status. It decides nothing about a Pod's containers itself: that is the pure crate `pod-core`. Volumes, resources,
//! statistics and the HTTPS server are in crates of their own, whose names begin with `kubelet-`.
//!
//! Read [`worker`] first, then [`run()`].
//!
//! Invariants:
//! - Each Pod has one worker task, which observes the runtime, asks `pod-core` for a plan, executes it, and reports.
//!   Events of the runtime and the API only wake workers, so a lost event delays the work and never changes its result.
//! - The runtime and the API server hold all state that matters. A restarted kubelet finds its containers by their
//!   labels and restarts none.
//! - Static Pods need no API server.
//! - Heartbeats have a runtime and a thread of their own, so other work cannot delay them.

mod annotations;
mod certificate;
mod context;
mod credentials;
mod enroll;
mod error;
mod eviction;
mod features;
mod housekeeping;
mod kernel;
mod log_links;
mod machine;
mod metrics;
mod mirrors;
mod node;
mod pleg;
mod pod_state;
mod pods;
mod pressures;
mod probes;
mod pulls;
mod report;
mod requests;
mod run;
mod runtime;
mod runtime_version;
mod shutdown;
mod sources;
mod startups;
mod steps;
mod systemd;
mod user_namespaces;
mod worker;

pub use credentials::ProvidersError;
pub use enroll::{enroll, keep_enrolled};
pub use error::{EnrollError, Error};
pub use kernel::{HostError, KernelError};
pub use kubelet_config::{
    Args, CloudSettings, ConfigError, HostSettings, KubeletConfiguration, Settings, parse,
};
pub use kubelet_resources::{ClaimsStateError, PlacementError, TopologyError};
pub use kubelet_server::ServerError;
pub use machine::default_address;
pub use run::{Config, Host, run};
pub use systemd::{ServiceManager, WatchdogError};
pub use user_namespaces::UserNamespacesError;
