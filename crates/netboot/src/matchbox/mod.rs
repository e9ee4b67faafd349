//! Matchbox: groups of machines, chosen by labels, and the profiles that they boot.

pub mod assets;
mod blocking;
pub mod check;
mod edit;
pub mod handler;
mod labels;
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

pub use handler::{Asked, Matchbox, Settings};
pub use labels::{Labels, parse_mac};
pub use nodes::{CLUSTER, NAMES, node_name};
pub use secrets::{BOOTSTRAP_TOKEN, TokenMaker};
pub use store::{Boot, Group, Kind, Pattern, Profile, Store, StoreError, select};
