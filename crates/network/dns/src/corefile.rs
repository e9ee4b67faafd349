//! Parses the Corefile: server blocks by zone and port, each with its plugins.
//!
//! A plugin or option that this server does not have is an error of its line. The few settings that are accepted
//! without effect are listed in `ignored.rs` with the reason, which is logged.

mod block;
mod check;
mod ignored;
mod import;
mod migrate;
mod plugins;

use std::path::Path;

pub(crate) use block::{Block, Timeouts};
pub use check::check;
pub use migrate::{Migration, migrate};
pub(crate) use plugins::build;

use crate::directive::{CorefileError, Directive};

/// Returns the lines of a Corefile after imports. They differ if the Corefile or an imported file does. Files are
/// relative to `folder`.
pub(crate) fn read(text: &str, folder: &Path) -> Result<Vec<Directive>, CorefileError> {
    import::expand(text, Some(folder), &|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests;
