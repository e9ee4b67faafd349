//! Comparisons with upstream's published documents and recorded answers, if they are present next to the workspace.

use std::path::PathBuf;

mod custom;
mod memory;
mod openapi;

/// Returns the reference directory, if it exists on this machine.
fn reference() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.ancestors().map(|dir| dir.join("shared/reference")).find(|dir| dir.is_dir())
}
