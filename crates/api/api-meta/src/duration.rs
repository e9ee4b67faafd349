use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The error for a string that is not a Go duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time: invalid duration {0:?}; write it like 1h30m, 10s or 500ms")]
pub struct ParseDurationError(pub String);

/// A duration in Go's notation (`4m0s`). It may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

const NANOS: i64 = 1_000_000_000;
const UNITS: &[(&str, i64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS),
    ("m", 60 * NANOS),
    ("h", 3600 * NANOS),
];

impl GoDuration {
    /// The zero duration, which most settings replace by their default.
    pub const ZERO: Self = Self(0);

    /// Creates a duration of whole seconds. The range is 292 years in both directions, as in Go.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds * NANOS)
    }

    /// Creates a duration of whole milliseconds, in the same range.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Returns the nanoseconds, as in a Go `time.Duration`.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Returns `true` for the zero duration, which most settings replace by their default.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Converts to a standard duration; negative durations become zero.
    pub const fn to_std(self) -> Duration {
        if self.0 <= 0 { Duration::ZERO } else { Duration::from_nanos(self.0 as u64) }
    }
}

impl From<Duration> for GoDuration {
    /// Converts a standard duration; longer ones than Go's become its longest.
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Self {
        duration.to_std()
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let fail = || ParseDurationError(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(fail());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (number, after) = rest
                .split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?);
            let (unit, after) = after.split_at(
                after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len()),
            );
            let scale = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fail)?.1;
            let part = scale_digits(number, scale).ok_or_else(fail)?;
            total = total.checked_add(part).ok_or_else(fail)?;
            rest = after;
        }
        i64::try_from(if negative { -total } else { total }).map(Self).map_err(|_| fail())
    }
}

/// Multiplies `number` (digits with at most one point) by `scale`, truncated to nanoseconds.
fn scale_digits(number: &str, scale: i64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = &fraction[..fraction.len().min(18)];
    let parts: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    whole
        .checked_mul(scale.into())?
        .checked_add(parts * i128::from(scale) / 10i128.pow(digits.len() as u32))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let second = NANOS as u64;
        if nanos < second {
            let (unit, scale) = match nanos {
                0..1_000 => ("ns", 1),
                1_000..1_000_000 => ("µs", 1_000),
                _ => ("ms", 1_000_000),
            };
            return write!(f, "{}{unit}", decimal(nanos, scale));
        }
        let (hours, minutes) = (nanos / (3600 * second), nanos / (60 * second) % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % (60 * second), second))
    }
}

fn decimal(value: u64, scale: u64) -> String {
    let fraction = value % scale;
    if fraction == 0 {
        return (value / scale).to_string();
    }
    let width = scale.ilog10() as usize;
    format!("{}.{}", value / scale, format!("{fraction:0width$}").trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_like_go() {
        let cases = [
            ("4m0s", 240 * NANOS, "4m0s"),
            ("24h", 86_400 * NANOS, "24h0m0s"),
            ("1h30m", 5400 * NANOS, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("500ms", 500_000_000, "500ms"),
            ("1.5us", 1500, "1.5µs"),
            ("7ns", 7, "7ns"),
            ("-2m", -120 * NANOS, "-2m0s"),
            ("0", 0, "0s"),
            (".5h", 1800 * NANOS, "30m0s"),
        ];
        for (text, nanos, written) in cases {
            let duration: GoDuration = text.parse().unwrap();
            assert_eq!(
                (duration.nanos(), duration.to_string().as_str()),
                (nanos, written),
                "{text}"
            );
        }
    }

    #[test]
    fn rejects_durations_that_go_rejects() {
        let most = format!("{}ns", i128::MAX);
        let twice = most.repeat(2);
        for text in ["", "3", "1d", "s", "-", "1h 2m", ".s", "9999999h", "1..5s", &most, &twice] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parses_its_own_output(nanos: i64) {
            proptest::prop_assume!(nanos != i64::MIN);
            proptest::prop_assert_eq!(GoDuration(nanos).to_string().parse::<GoDuration>().unwrap(), GoDuration(nanos));
        }
    }
}
