//! The limits of the embedded engine, and its clock.

use std::{sync::Arc, time::Duration};

/// The engine's limits and its clock.
#[derive(Clone)]
pub struct Options {
    /// The limit for keys, values and retained history, in bytes; beyond it puts are rejected.
    pub quota_bytes: u64,
    /// The limit for superseded versions, in bytes; beyond it the oldest are discarded.
    pub history_bytes: u64,
    /// The limit for one watcher's queue, in bytes; beyond it the watch is closed.
    pub watch_bytes: u64,
    /// The limit for requests queued for the writer, in bytes; beyond it callers wait.
    pub queue_bytes: usize,
    /// The log's length, in bytes, that triggers a snapshot. If the data is larger, its size is the trigger.
    pub snapshot_log_bytes: u64,
    /// The interval of expiry, snapshots and progress when nothing is written.
    pub tick: Duration,
    /// The clock for expiry.
    pub clock: Arc<dyn rt::Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quota_bytes: 2 << 30,
            history_bytes: 32 << 20,
            watch_bytes: 16 << 20,
            queue_bytes: 32 << 20,
            snapshot_log_bytes: 64 << 20,
            tick: Duration::from_millis(500),
            clock: Arc::new(rt::SystemClock),
        }
    }
}
