//! Cloud local: a cluster's groups are instances on this host.
//!
//! [`instances`] creates and replaces machines. This crate derives them from a cluster's spec, and gives
//! administrators, machines and the keeper access to the API and to the state store. `kops-node` runs inside the
//! machines. Read [`fleet_spec`] first.
//!
//! Invariants:
//! - Settings that machines would ignore are rejected by name, when they are stored.
//! - The key to the state store stays on the host.

mod addons;
mod balancer;
mod dns;
mod error;
mod fields;
mod fleet;
mod gateway;
mod keeper;
mod keys;
mod kubeconfig;
mod model;
mod names;
mod program;
mod repair;
mod restore;
mod spec;
mod stage;
mod state;
mod subnets;
mod support;
mod volumes;

pub use addons::needs_proxy_daemon;
pub use balancer::write_balancer_files;
pub use error::Error;
pub use fleet::{api_addresses, fleet};
pub use gateway::{check_store, serve_store, write_settings};
pub use keeper::keep;
pub use keys::{KeyUsers, applied_config};
pub use kubeconfig::{COMMAND_PERIOD, administrator, issue_kubeconfig, server_url};
pub use model::{GroupUserData, Model, build_model};
pub use program::{apply_fleet, machine_program};
pub use spec::{fleet_spec, set_user_data};
pub use stage::{LogLine, Stage};
pub use state::{ClusterState, MachineProblem, is_outdated, list_objects, machine_problems};
pub use support::{CompleteCluster, check_cloud, check_members, check_support};
