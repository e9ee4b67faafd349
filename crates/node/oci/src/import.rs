//! The import of an archive into containerd.

use std::{io, path::Path, process::Command};

/// An error in importing an archive.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("import {archive} into containerd: run ctr: {source}; is containerd installed?")]
    Run { archive: String, source: io::Error },
    #[error("import {archive} into containerd at {socket}: {message}")]
    Refused { archive: String, socket: String, message: String },
}

/// Imports an archive into containerd's image store, in the namespace of its CRI plugin. Blocks.
pub fn import(socket: &Path, archive: &Path) -> Result<(), ImportError> {
    let named = archive.display().to_string();
    let output = Command::new("ctr")
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images", "import", "--all-platforms"])
        .arg(archive)
        .output()
        .map_err(|source| ImportError::Run { archive: named.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ImportError::Refused { archive: named, socket: socket.display().to_string(), message })
}
