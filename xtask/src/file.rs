//! Reads and writes files. Errors name the file.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::error::{During, Result};

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).during("reading", path.display())
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read(path)?).during("parsing", path.display())
}

/// Returns the paths in a directory.
pub(crate) fn list(directory: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(directory).during("listing", directory.display())?;
    Ok(entries.flatten().map(|entry| entry.path()))
}

pub(crate) fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).during("creating", path.display())
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, text).during("writing", path.display())
}

pub(crate) fn make_executable(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).during("changing", path.display())
}
