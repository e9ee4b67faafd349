//! Recognizes changes of files.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

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

/// Calls `read` after each change of a file, and while `is_unread`. An interval of zero switches this off.
pub(super) async fn watch(
    file: &Path,
    interval: Duration,
    is_unread: impl Fn() -> bool,
    read: impl Fn(),
) {
    let mut version = Version::of(file);
    while !interval.is_zero() {
        tokio::time::sleep(interval).await;
        let current = Version::of(file);
        if current != version || is_unread() {
            version = current;
            read();
        }
    }
}
