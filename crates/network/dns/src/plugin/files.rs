//! Recognizes changes of files.

use std::{path::Path, time::SystemTime};

/// The version of a file, which differs after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    modified: SystemTime,
    pub(super) length: u64,
}

impl Version {
    /// Returns the file's version; `None` if the file cannot be read.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        Some(Self { modified: metadata.modified().ok()?, length: metadata.len() })
    }
}
