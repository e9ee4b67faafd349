//! The kubelet: brings the Pods of one node to life over CRI, tends them, and reports.
//!
//! - Each Pod has one worker task ([`worker`]), which observes, asks the pure core (`pod-core`) for a plan, carries
//!   it out, and reports. What happens in the runtime or the API only wakes workers, so that a lost message costs
//!   time and never correctness.
//! - All state that matters is the runtime's and the API's. A kubelet that is started again finds its containers by
//!   their labels and restarts none.
//! - Static Pods need no API server.
//! - Heartbeats run on a runtime of their own, so that no amount of work delays them.

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
pub use config::{ConfigError, KubeletConfiguration, Place, Settings, parse};
pub use enroll::{EnrollError, enroll, keep_enrolled};
pub use machine::default_address;
pub use placement::{PlacementError, TopologyError};
pub use run::{Config, Error, run};
pub use server::ServerError;
