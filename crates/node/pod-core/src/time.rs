//! Helpers for times and durations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use k8s_openapi::jiff::Timestamp;

/// Converts a time of the system's clock. A time before the epoch becomes the epoch.
pub fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

/// Converts nanoseconds since the epoch. Negative values become the epoch.
pub fn from_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos.max(0))).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns `start` plus `wait`, or the largest time if that overflows.
pub fn after(start: Timestamp, wait: Duration) -> Timestamp {
    start.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Returns the time since `start`, or zero if it is in the future.
pub(crate) fn since(start: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(start)).unwrap_or_default()
}

/// Formats a duration like Go, with millisecond precision.
pub fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return if millis == 0 { "0s".to_owned() } else { format!("{millis}ms") };
    }
    let (minutes, millis) = (millis / 60_000, millis % 60_000);
    let part = format!("{}.{:03}", millis / 1000, millis % 1000);
    let seconds = part.trim_end_matches('0').trim_end_matches('.');
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}
