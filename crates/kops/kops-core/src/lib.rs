//! kOps without its effects: turns the user's options into specs, node configurations, cloud resources and plans.
//!
//! Options become a cluster and its groups ([`create`]), then a complete spec ([`complete`]) and complete groups
//! ([`complete_group`]), then the configuration of machines ([`node_config`]). [`model`] describes the cloud resources
//! of a cluster, and [`nodeup`] the tasks that configure a machine. [`roll`] and [`heal`] decide which machines are
//! replaced and when. Read [`complete`] first.
//!
//! Invariants:
//! - The crate is pure. The contents of clouds, channels and stores are arguments: [`World`] and [`channel::Channel`].
//! - Each step is upstream's, in upstream's order, because its result is compared, hashed and stored.
//! - Plain values (versions, images, limits) are in `facts/`, not in code.
//! - Unsupported features, such as other clouds, are rejected by name.

mod assign;
mod aws;
pub mod backup;
mod boot;
pub mod channel;
mod cluster;
mod complete;
pub mod create;
pub mod direct;
pub mod dns;
mod error;
mod etcd;
mod files;
#[cfg(test)]
mod fuzzed;
mod gce;
mod group;
pub mod heal;
mod images;
pub mod life;
mod machine_types;
mod marks;
pub mod member;
pub mod model;
mod names;
mod node;
mod node_inputs;
pub mod nodeup;
mod pods;
mod ranges;
mod reference;
mod registry_auth;
pub mod render;
pub mod restore;
pub mod roll;
mod scheduler;
pub mod selector;
pub mod snapshot;
pub mod template;
mod terraform;
pub mod upgrade;
mod version;
pub mod volumes;
mod world;

pub use assign::assign;
pub use boot::{boot_config, content_hash};
pub use cluster::{CloudName, Cluster, Dns};
pub use complete::{Machines, complete};
pub use error::Error;
pub use etcd::{etcd_pod, etcd_spec};
pub use files::Hashes;
pub use group::complete_group;
pub use machine_types::default_machine_types;
pub use names::dns_name;
pub use node::{node_config, node_config_path};
pub use node_inputs::{NodeInputs, NodeKeyset};
pub use pods::{channels_pod, healthcheck_pod};
pub use registry_auth::registry_credentials;
pub use scheduler::scheduler_config;
pub use version::{Version, VersionRange};
pub use world::{DnsZone, Image, MachineType, Network, Subnet, World};
