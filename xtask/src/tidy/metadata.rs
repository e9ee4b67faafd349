//! The workspace's crates and their dependencies, as cargo reports them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    error::{During, Result},
    run::{cargo, output},
};

#[derive(Default)]
pub(super) struct Crate {
    pub(super) name: String,
    /// The directory of the crate, below the workspace's root.
    pub(super) directory: PathBuf,
    /// The layer that `[package.metadata.windlass]` names.
    pub(super) layer: String,
    /// `true` if the crate decides and does nothing: it holds no clock, socket or task.
    pub(super) is_pure: bool,
    /// Every dependency, of the workspace and of others.
    pub(super) uses: Vec<Use>,
}

pub(super) struct Use {
    pub(super) name: String,
    /// `true` for a dependency of tests alone.
    pub(super) in_tests: bool,
}

/// Reads the workspace's crates from `cargo metadata`.
pub(super) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let text = output(&mut cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).during("parsing", "cargo's metadata")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.map(|package| read(root, package)).collect())
}

fn read(root: &Path, package: &Value) -> Crate {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let directory = manifest.parent().unwrap_or(&manifest);
    let own = &package["metadata"]["windlass"];
    let uses = package["dependencies"].as_array().into_iter().flatten();
    let uses = uses.map(|d| Use { name: text(&d["name"]), in_tests: d["kind"] == "dev" });
    Crate {
        name: text(&package["name"]),
        directory: directory.strip_prefix(root).unwrap_or(directory).to_owned(),
        layer: text(&own["layer"]),
        is_pure: own["pure"] == true,
        uses: uses.collect(),
    }
}
