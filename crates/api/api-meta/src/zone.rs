use std::sync::OnceLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::time::Timestamp;

/// A time zone by its IANA name, such as `Europe/Paris`.
///
/// The rules are part of the binary, so that a schedule has the same meaning on machines with other rules or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    /// The UTC zone, which [`Timestamp`] prints.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// Returns the zone of a name in the database's exact spelling, or `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        static RULES: OnceLock<TimeZoneDatabase> = OnceLock::new();
        let zone = RULES.get_or_init(TimeZoneDatabase::bundled).get(name).ok()?;
        (zone.iana_name() == Some(name)).then_some(Self(zone))
    }

    /// Returns the zone's offset from UTC at a time, in seconds.
    pub fn offset(&self, at: Timestamp) -> i64 {
        let moment = jiff::Timestamp::from_second(at.unix());
        moment.map_or(0, |moment| self.0.to_offset(moment).seconds().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applies_daylight_saving_time() {
        for (zone, at, hours) in [
            ("UTC", "2026-07-01T00:00:00Z", 0.0),
            ("Etc/UTC", "2026-07-01T00:00:00Z", 0.0),
            ("Europe/Paris", "2026-03-29T00:59:59Z", 1.0),
            ("Europe/Paris", "2026-03-29T01:00:00Z", 2.0),
            ("America/New_York", "2026-01-01T00:00:00Z", -5.0),
            ("Asia/Kolkata", "2026-01-01T00:00:00Z", 5.5),
            ("US/Pacific", "2026-07-01T00:00:00Z", -7.0),
            // Years beyond the explicit rules follow the last rule.
            ("Europe/Paris", "2090-07-01T00:00:00Z", 2.0),
        ] {
            let offset = Zone::named(zone).unwrap().offset(at.parse().unwrap());
            assert_eq!(offset as f64 / 3600.0, hours, "{zone} at {at}");
        }
    }

    #[test]
    fn returns_none_for_unknown_zone() {
        for name in [
            "",
            "Local",
            "europe/paris",
            "Europe/Nowhere",
            "../etc/passwd",
            "EST5EDT,M3.2.0,M11.1.0",
        ] {
            assert_eq!(Zone::named(name), None, "{name}");
        }
    }
}
