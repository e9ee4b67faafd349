//! Writes files of static Pods.

use std::{fs, path::Path};

use bootstrap_core::Layout;
use kops_api::yaml;
use serde_json::Value;

use crate::error::Error;

/// Creates a directory and those above it.
pub(super) fn make_directory(path: &Path) -> Result<(), Error> {
    let shown = path.display().to_string();
    Ok(fs::create_dir_all(path).map_err(kops_store::Error::file("making the directory", &shown))?)
}

/// Creates the directory of a file.
pub(super) fn make_parent(path: &Path) -> Result<(), Error> {
    make_directory(path.parent().unwrap_or(path))
}

/// Writes the manifest of a static Pod, unless it has this content already.
pub(super) fn write_pod(name: &str, pod: &Value) -> Result<(), Error> {
    let path = Layout::default().manifests().join(format!("{name}.manifest"));
    make_parent(&path)?;
    let text = yaml::to_string(pod);
    if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
        pki::write_file(&path, text.as_bytes(), pki::KEY_MODE)?;
    }
    Ok(())
}
