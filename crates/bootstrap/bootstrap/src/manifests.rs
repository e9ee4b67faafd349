//! Writes static Pods for the kubelet to run.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use api_config::yaml;
use bootstrap_core::manifests::{Component, Machine, manifest};
use serde_json::Value;

use crate::{Error, FileChange, error::io, patches::Patches};

/// Writes the component's static Pod with patches applied. An unchanged file is not written, because the kubelet
/// restarts a Pod whose file changes.
pub fn write(
    component: Component,
    machine: &Machine<'_>,
    dir: &Path,
    patches: &Patches,
) -> Result<FileChange, Error> {
    write_pod(&pod(component, machine, patches)?, dir, &component.file())
}

/// Returns the component's static Pod with patches applied.
pub(crate) fn pod(
    component: Component,
    machine: &Machine<'_>,
    patches: &Patches,
) -> Result<Value, Error> {
    patches.apply(component.name(), manifest(component, machine)?)
}

/// Writes any static Pod; see [`write`].
pub(crate) fn write_pod(pod: &Value, dir: &Path, file: &str) -> Result<FileChange, Error> {
    fs::create_dir_all(dir).map_err(io("create the directory", dir))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
        .map_err(io("set the mode of", dir))?;
    let path = dir.join(file);
    let text = yaml::to_string(pod)?;
    let written = pki::update_file(&path, text.as_bytes(), 0o600)?;
    Ok(FileChange { path, written })
}

/// Creates etcd's data directory with mode 0700.
pub(crate) fn make_data_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(io("create the directory", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .map_err(io("set the mode of", path))
}
