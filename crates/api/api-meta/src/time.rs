use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time, printed as RFC 3339 in UTC with seconds: the API's `Time`. `micros` prints a `MicroTime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

/// The error for a string that is not an RFC 3339 time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parsing time {0:?}: expected the form 2006-01-02T15:04:05Z")]
pub struct ParseTimeError(String);

impl Timestamp {
    /// Creates a time from seconds since the epoch, which may be negative. `nanos` is capped below one second.
    pub fn from_unix(seconds: i64, nanos: u32) -> Self {
        Self { seconds, nanos: nanos.min(999_999_999) }
    }

    /// Returns the whole seconds since the epoch.
    pub fn unix(self) -> i64 {
        self.seconds
    }

    /// Returns the nanoseconds of the second.
    pub fn nanos(self) -> u32 {
        self.nanos
    }

    /// Returns the time without its fraction, as a stored `Time`.
    #[must_use]
    pub fn to_seconds(self) -> Self {
        Self { nanos: 0, ..self }
    }

    /// Adds a duration, saturating.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let nanos = self.nanos + by.subsec_nanos();
        Self {
            seconds: self
                .seconds
                .saturating_add_unsigned(by.as_secs())
                .saturating_add((nanos / 1_000_000_000).into()),
            nanos: nanos % 1_000_000_000,
        }
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        let (a, b) = (self.total_nanos(), earlier.total_nanos());
        Duration::from_nanos(u64::try_from((a - b).max(0)).unwrap_or(u64::MAX))
    }

    fn total_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }

    /// Prints the time with as many fraction digits as needed.
    pub fn exact(self) -> String {
        let whole = self.to_string();
        match self.nanos {
            0 => whole,
            nanos => {
                let fraction = format!("{nanos:09}");
                format!("{}.{}Z", &whole[..whole.len() - 1], fraction.trim_end_matches('0'))
            }
        }
    }

    /// Prints the time with microseconds: `2006-01-02T15:04:05.000000Z`.
    pub fn micros(self) -> String {
        let whole = self.to_string();
        format!("{}.{:06}Z", &whole[..whole.len() - 1], self.nanos / 1000)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let borrow = u32::from(before.subsec_nanos() > 0);
                Self {
                    seconds: -(before.as_secs() as i64) - i64::from(borrow),
                    nanos: borrow * 1_000_000_000 - before.subsec_nanos(),
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            UNIX_EPOCH.checked_sub(seconds)
        } else {
            UNIX_EPOCH.checked_add(seconds)
        };
        whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(time.nanos.into())
    }
}

/// Returns the days since 1970-01-01 of a Gregorian date. Years are counted from March, so that leap days come last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Prints a time whose year has four digits. Every object has several times, and the general formatter takes twenty
/// times as long.
fn four_digit_year(year: i64, month: i64, day: i64, clock: [i64; 3]) -> Option<[u8; 20]> {
    let mut text = *b"0000-00-00T00:00:00Z";
    let year = u16::try_from(year).ok().filter(|year| *year < 10_000)?;
    let [hour, minute, second] = clock;
    let pairs = [
        (0, i64::from(year / 100)),
        (2, i64::from(year % 100)),
        (5, month),
        (8, day),
        (11, hour),
        (14, minute),
        (17, second),
    ];
    for (at, two) in pairs {
        // Each value is below 100.
        let two = two as u8;
        text[at] += two / 10;
        text[at + 1] += two % 10;
    }
    Some(text)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.seconds.div_euclid(86_400));
        let second = self.seconds.rem_euclid(86_400);
        let clock = [second / 3600, second / 60 % 60, second % 60];
        let Some(text) = four_digit_year(year, month, day, clock) else {
            let [hour, minute, second] = clock;
            return write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
        };
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseTimeError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = bytes.get(from..to)?;
        part.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, b)| bytes.get(*at) != Some(b)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days_from_civil(year, month, day);
    let in_range = (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60;
    if !in_range || civil_from_days(days) != (year, month, day) {
        return None;
    }
    let mut rest = &bytes[19..];
    let mut nanos = 0;
    if let [b'.', fraction @ ..] = rest {
        let digits = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        nanos = (0..9)
            .fold(0, |n, i| n * 10 + if i < digits { u32::from(fraction[i] - b'0') } else { 0 });
        rest = &fraction[digits..];
    }
    let offset = match rest {
        [b'Z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = bytes.len() - 5;
            let (hours, minutes) = (number(at, at + 2)?, number(at + 3, at + 5)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'+' { 60 } else { -60 }
        }
        _ => return None,
    };
    Some(Timestamp { seconds: days * 86_400 + hour * 3600 + minute * 60 + second - offset, nanos })
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Prints an age like kubectl: one or two units, coarser with age.
pub fn human_duration(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |a: u64, unit: &str, b: u64, smaller: &str| match b {
        0 => format!("{a}{unit}"),
        b => format!("{a}{unit}{b}{smaller}"),
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(days, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        two(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_and_prints_rfc3339() {
        let cases = [
            ("1970-01-01T00:00:00Z", 0, 0, "1970-01-01T00:00:00Z"),
            ("2024-02-29T23:59:59Z", 1_709_251_199, 0, "2024-02-29T23:59:59Z"),
            ("2024-03-01T01:00:00+01:00", 1_709_251_200, 0, "2024-03-01T00:00:00Z"),
            ("1969-12-31T23:59:59.5Z", -1, 500_000_000, "1969-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", -62_135_596_800, 0, "0001-01-01T00:00:00Z"),
        ];
        for (text, seconds, nanos, printed) in cases {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(
                (time.unix(), time.nanos(), time.to_string().as_str()),
                (seconds, nanos, printed)
            );
        }
        assert_eq!(
            "2024-01-02T03:04:05.1234567Z".parse::<Timestamp>().unwrap().micros(),
            "2024-01-02T03:04:05.123456Z"
        );
        for bad in [
            "",
            "2023-02-29T00:00:00Z",
            "2024-01-01",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-13-01T00:00:00Z",
            "2024-01-01T00:00:00.Z",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn prints_ages_like_kubectl() {
        let (m, h, d) = (60, 3600, 86_400);
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (10 * m, "10m"),
            (179 * m, "179m"),
            (3 * h, "3h"),
            (3 * h + 5 * m, "3h5m"),
            (8 * h + m, "8h"),
            (47 * h, "47h"),
            (48 * h, "2d"),
            (50 * h, "2d2h"),
            (8 * d + h, "8d"),
            (729 * d, "729d"),
            (730 * d, "2y"),
            (731 * d, "2y1d"),
            (8 * 365 * d + 5 * d, "8y"),
        ];
        for (seconds, want) in cases {
            assert_eq!(human_duration(Duration::from_secs(seconds)), want, "{seconds}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(seconds in -62_135_596_800_i64..253_402_300_800, micros in 0..1_000_000_u32) {
            let time = Timestamp::from_unix(seconds, micros * 1000);
            prop_assert_eq!(time.micros().parse::<Timestamp>().unwrap(), time);
            prop_assert_eq!(time.exact().parse::<Timestamp>().unwrap(), time);
            prop_assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time.to_seconds());
            prop_assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
