use std::time::Duration;

pub use k8s_openapi::jiff::Timestamp;

/// `start` plus `wait`, at most the end of time.
pub fn after(start: Timestamp, wait: Duration) -> Timestamp {
    start.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// How long ago `start` was, zero if it lies ahead.
pub(crate) fn since(start: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(start)).unwrap_or_default()
}
