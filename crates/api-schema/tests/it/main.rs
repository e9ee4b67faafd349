//! Checks against what upstream publishes, where it is at hand beside the workspace.

use std::path::PathBuf;

mod custom;
mod openapi;

/// The reference directory, if this machine has it.
fn reference() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.ancestors().map(|dir| dir.join("shared/reference")).find(|dir| dir.is_dir())
}
