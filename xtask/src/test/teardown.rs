//! Waits for the teardown of the end-to-end tests' clusters.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Waits until the clusters of tests are removed, which their own processes do. The network namespaces go last.
pub(super) fn wait() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let left = || {
        let names = fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with("windlass-e2e-"))
    };
    while left() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
    }
}
