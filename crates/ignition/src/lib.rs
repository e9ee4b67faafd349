//! Ignition configs, what they come to, and the configs from which they are made: Butane's and Container Linux'.
//!
//! Pure: files that a Butane config names come through a function of the caller's, partition tables and user
//! databases go in and out as bytes and texts. Errors and warnings say the path within the config, and for Butane the
//! line and column. Every plan made of a plan's result is that result: a machine laid out twice is laid out once.

mod advice;
pub mod butane;
mod clc;
pub mod clevis;
mod config;
mod data;
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

pub use config::{ConfigError, needs_network, parse, typed};
pub use data::{DataError, Decoded, decode_url, escape, unpacked};
pub use merge::merge;

/// Translates a Butane config or, where none of its keys says which config it is, a Container Linux Config.
pub fn translate(
    text: &str,
    files: Option<butane::Files<'_>>,
) -> Result<butane::Translation, butane::Error> {
    let root = yaml::parse(text).map_err(butane::Error::Yaml)?;
    if clc::is_one(&root) { clc::translate(&root) } else { butane::of(&root, files) }
}
