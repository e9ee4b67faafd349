//! Tests against upstream's published test data, if it is available beside the workspace.

use std::path::PathBuf;

mod defaulting;
mod roundtrip;
mod testdata;
mod yaml;

/// Returns the reference directory, if this machine has it.
fn reference() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.ancestors().map(|dir| dir.join("shared/reference")).find(|dir| dir.is_dir())
}
