//! Clusters on AWS: gathers facts from the user and from AWS, builds a cluster's model, and carries plans out. Models
//! of clusters on GCE and metal are built from the same inputs, without calls.
//!
//! `kops-core` decides which resources a cluster has and which calls change them, and [`aws`] makes the calls. Commands
//! and their output belong to `kops`. Read [`build_model`] first.
//!
//! Invariants:
//! - Nothing is stored or changed while a model is built.
//! - Machines run only files with known hashes.

mod actor;
mod client;
mod creation;
mod error;
mod facts;
mod model;
mod store;
mod world;

pub use aws::Client;

pub use actor::{Actor, erase};
pub use client::{make_call, open_client, query_groups, query_resources};
pub use creation::{query_creation, query_machine_types};
pub use error::Error;
pub use facts::CloudFacts;
pub use model::{BuiltModel, ModelInputs, build_gce_model, build_metal_model, build_model};
pub use store::{check_store, metal_changes, store_changes};
pub use world::{deletion_scope, query_world};
