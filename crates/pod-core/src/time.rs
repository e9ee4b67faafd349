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

/// A duration as Go prints it, to the millisecond.
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
