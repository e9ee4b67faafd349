//! Matchbox: selects a group of machines by labels and serves the scripts and configs of its profile.
//!
//! Read [`Matchbox`] first: it answers HTTP requests without knowing HTTP. [`Store`] reads groups, profiles and
//! templates, [`web`] and [`port`] serve HTTP, and [`rpc`] serves the gRPC API. Secrets are in `secrets`, proofs of
//! identity by a TPM in `tpm`.

pub mod assets;
mod blocking;
pub mod check;
mod edit;
pub mod handler;
mod nodes;
pub(crate) mod port;
mod render;
mod report;
pub mod rpc;
mod secrets;
mod sendfile;
mod store;
mod tpm;
pub mod web;

#[cfg(test)]
mod install_tests;
#[cfg(test)]
mod tests;

pub use crate::labels::{Labels, parse_mac};
pub use handler::{HttpContent, HttpRequest, Matchbox, Settings};
pub use nodes::{CLUSTER, NAMES, node_name};
pub use secrets::{BOOTSTRAP_TOKEN, TokenError, TokenMaker};
pub use store::{Boot, Group, GroupError, Kind, Pattern, Profile, Store, StoreError, select};
