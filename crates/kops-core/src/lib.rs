//! What kOps makes of what the user says: options become a cluster and its groups ([`create`]), these a complete
//! spec ([`complete`]) and complete groups ([`complete_group`]), these what machines read ([`node_config`]). Which machines
//! are replaced, and when, [`roll`] and [`heal`] say.
//!
//! Invariants:
//! - The crate is pure. What a cloud, a channel and a store hold comes in as [`World`] and [`channel::Channel`].
//! - Each step is upstream's, in upstream's order, because what comes of it is compared, hashed and kept.
//! - What is only a value (versions, images, limits) stands in `facts/`, not in code.
//! - What is not built here (other clouds) is refused by name.

mod assign;
pub mod backup;
mod boot;
pub mod channel;
mod cluster;
mod complete;
pub mod create;
pub mod direct;
mod error;
mod etcd;
mod files;
mod group;
pub mod heal;
pub mod life;
pub mod member;
pub mod model;
mod names;
mod node;
mod pods;
mod ranges;
pub mod render;
pub mod roll;
mod scheduler;
pub mod snapshot;
mod version;
mod world;

pub use assign::assign;
pub use boot::boot_config;
pub use cluster::{CloudName, Cluster, Dns};
pub use complete::{Machines, complete};
pub use error::Error;
pub use etcd::{etcd_pod, etcd_spec};
pub use files::Hashes;
pub use group::complete_group;
pub use node::{NodeInputs, NodeKeyset, node_config};
pub use pods::{channels_pod, healthcheck_pod};
pub use scheduler::scheduler_config;
pub use version::{Version, VersionRange};
pub use world::{DnsZone, Image, MachineType, Network, Subnet, World};
