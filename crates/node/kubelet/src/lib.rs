//! The kubelet: runs the Pods of one node by means of a container runtime (CRI), and reports their and the node's
//! status. It decides nothing about a Pod's containers itself: that is the pure crate `pod-core`.
//!
//! Read [`worker`] first, then [`run()`].
//!
//! - Each Pod has one worker task, which observes the runtime, asks `pod-core` for a plan, executes it, and reports.
//!   Events of the runtime and the API only wake workers, so a lost event delays the work and never changes its result.
//! - The runtime and the API server hold all state that matters. A restarted kubelet finds its containers by their
//!   labels and restarts none.
//! - Static Pods need no API server.
//! - Heartbeats have a runtime and a thread of their own, so other work cannot delay them.

mod args;
mod certificate;
mod checkpoint;
mod claims;
mod config;
mod context;
mod devices;
mod enroll;
mod events;
mod eviction;
mod features;
mod flags;
mod housekeeping;
mod kernel;
mod local_volumes;
mod logs;
mod machine;
mod node;
mod objects;
mod placement;
mod pleg;
mod plugins;
mod pod_resources;
mod pods;
mod probes;
mod pulls;
mod report;
mod run;
mod runtime;
mod server;
mod sources;
mod stats;
mod steps;
mod volumes;
mod worker;

pub use args::Args;
pub use claims::ClaimsStateError;
pub use config::{ConfigError, HostSettings, KubeletConfiguration, Settings, parse};
pub use enroll::{EnrollError, enroll, keep_enrolled};
pub use machine::default_address;
pub use placement::{PlacementError, TopologyError};
pub use run::{Config, Error, run};
pub use server::ServerError;
