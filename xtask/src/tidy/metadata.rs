//! Reads the workspace's crates and their dependencies from cargo.

use serde_json::Value;

use crate::run::{cargo, output};

pub(super) struct Crate {
    pub(super) name: String,
    /// The names of all dependencies, internal and external.
    pub(super) uses: Vec<Use>,
}

pub(super) struct Use {
    pub(super) name: String,
    /// `true` if only tests use it.
    pub(super) in_tests: bool,
}

pub(super) fn crates() -> Result<Vec<Crate>, String> {
    let text = output(&mut cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|e| format!("parsing cargo's metadata: {e}"))?;
    Ok(metadata["packages"].as_array().into_iter().flatten().map(read).collect())
}

fn read(package: &Value) -> Crate {
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let uses = package["dependencies"].as_array().into_iter().flatten();
    let uses = uses.map(|d| Use { name: name(d), in_tests: d["kind"] == "dev" });
    Crate { name: name(package), uses: uses.collect() }
}
