//! Validates specs, with upstream's messages, so that users can search for them.
//!
//! Fields with a fixed set of values are in `facts/values.tsv`. Rules that involve several fields are code, with a file
//! for each part of the spec. Facts that only the cloud knows (machine types, images) are not checked. Read
//! [`validate_cluster`] first.

mod access;
mod cluster;
mod components;
mod group;
mod machine;
mod network;
mod object;
mod paths;
mod pods;
mod provider;
mod update;
mod values;

pub use self::{
    object::{validate_cluster, validate_group},
    provider::CLOUD_LABEL,
    update::validate_cluster_update,
    values::overlap,
};
