//! Ignition configs, and Butane configs, from which they are made.
//!
//! Pure: files that a Butane config names come through a function of the caller's. Errors and warnings say
//! the path within the config, and for Butane the line and column.

pub mod butane;
mod config;
mod schema;
mod yaml;

pub use config::{ConfigError, parse};
