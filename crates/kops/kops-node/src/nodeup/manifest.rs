//! Writes files of static Pods.

use std::{fs, path::Path};

use bootstrap_core::Layout;
use kops_api::yaml;
use serde_json::Value;

use crate::error::Error;

/// Creates the directory of a file.
pub(super) fn make_parent(path: &Path) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory).map_err(kops_store::Error::file(
        "making the directory",
        &directory.display().to_string(),
    ))?;
    Ok(())
}

/// Writes a static Pod, unless its manifest exists.
pub(super) fn write_pod(name: &str, pod: &Value) -> Result<(), Error> {
    let path = Layout::default().manifests().join(format!("{name}.manifest"));
    make_parent(&path)?;
    let text = yaml::to_string(pod);
    if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
        pki::write_file(&path, text.as_bytes(), pki::KEY_MODE)?;
    }
    Ok(())
}
