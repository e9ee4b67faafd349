//! Ignition configs, the plans that they lead to, and the configs that translate to them: Butane and Container Linux
//! Config.
//!
//! Read [`parse`] and [`spec::Config`] first, then [`translate`]. The crate `firstboot` carries out the plans.
//!
//! Invariants: the crate is pure. Files that a Butane config names are read by the caller's [`butane::Directory`];
//! partition tables and user databases are bytes and strings. Errors and warnings name the path in the config, and for
//! Butane also line and column. Plans are idempotent: a plan made from a plan's result changes nothing.

mod advice;
pub mod butane;
mod clc;
pub mod clevis;
mod config;
mod data;
mod error;
#[cfg(test)]
mod fuzzed;
pub mod gpt;
pub mod kargs;
mod merge;
pub mod partition;
pub mod passwd;
mod paths;
mod schema;
pub mod spec;
pub mod units;
mod upgrade;
mod validate;
mod yaml;

pub use config::{needs_network, parse, typed};
pub use data::{DataError, Decoded, decode_url, decompress, escape};
pub use error::ConfigError;
pub use merge::merge;

/// Translates a Butane config, or a Container Linux Config if it has neither `variant` nor `version`.
pub fn translate(
    text: &str,
    files: Option<butane::Files<'_>>,
) -> Result<butane::Translation, butane::Error> {
    let root = yaml::parse(text)?;
    if clc::is_config(&root) { clc::translate(&root) } else { butane::translate_node(&root, files) }
}
