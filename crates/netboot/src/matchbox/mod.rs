//! Matchbox: groups of machines, chosen by labels, and the profiles that they boot.

pub mod assets;
pub mod check;
pub mod handler;
mod labels;
mod render;
mod store;

#[cfg(test)]
mod tests;

pub use handler::Matchbox;
pub use labels::{Labels, parse_mac};
pub use store::{Boot, Group, Kind, Pattern, Profile, Store, StoreError, select};
