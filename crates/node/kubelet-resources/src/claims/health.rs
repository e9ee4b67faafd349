//! The health of claimed devices, as reported by drivers. A report expires after a while.

use std::{collections::BTreeMap, time::Duration};

use deviceplugin::drahealth::{DeviceHealth, HealthStatus};
use tokio::time::Instant;

/// The validity of a health report if the driver sets none.
const HOLDS: Duration = Duration::from_secs(30);
/// The longest health message in bytes, as upstream. Longer ones are cut.
const MAX_MESSAGE_LENGTH: usize = 1024;

/// The health of each driver's devices, by pool and device name.
pub(super) type Healths = BTreeMap<String, BTreeMap<(String, String), Health>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) word: &'static str,
    pub(super) message: Option<String>,
    pub(super) until: Instant,
}

impl Health {
    pub(super) fn of(reported: &DeviceHealth) -> Self {
        let word = match reported.health() {
            HealthStatus::Healthy => "Healthy",
            HealthStatus::Unhealthy => "Unhealthy",
            HealthStatus::Unknown => "Unknown",
        };
        let seconds = u64::try_from(reported.health_check_timeout_seconds).unwrap_or(0);
        let holds = if seconds > 0 { Duration::from_secs(seconds).min(rt::FAR) } else { HOLDS };
        let message = (!reported.message.is_empty()).then(|| shorten(&reported.message));
        Self { word, message, until: Instant::now() + holds }
    }

    pub(super) fn health_and_message(&self) -> (&'static str, Option<&String>) {
        (self.word, self.message.as_ref())
    }
}

fn shorten(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_LENGTH {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE_LENGTH - 3);
    format!("{}...", message.get(..end).unwrap_or_default())
}
