//! Parses the Corefile: server blocks by zone and port, each with its plugins.
//!
//! A plugin or option that this server does not have is an error of its line. The few settings that are accepted
//! without effect are listed in `ignored.rs` with the reason, which is logged.

mod block;
mod ignored;
mod import;
mod plugins;

use std::path::Path;

pub(crate) use block::{Block, Timeouts};

use crate::directive::{CorefileError, Directive};

/// Returns the lines of a Corefile after imports. They differ if the Corefile or an imported file does. Files are
/// relative to `folder`.
pub(crate) fn read(text: &str, folder: &Path) -> Result<Vec<Directive>, CorefileError> {
    import::expand(text, folder, &|name| std::env::var(name).ok())
}

/// Builds the server blocks of a Corefile. `port` is the default for labels without a port.
pub(crate) fn build(lines: &[Directive], port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut built = Vec::new();
    for block in lines {
        built.extend(plugins::block(block, port)?);
    }
    if built.is_empty() {
        let reason = "there is no server block; write one like \".:53 { … }\"".into();
        return Err(CorefileError { file: None, line: 1, reason });
    }
    Ok(built)
}

#[cfg(test)]
mod tests;
