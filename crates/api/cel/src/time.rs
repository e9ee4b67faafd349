//! Parsing, formatting and accessors of timestamps and durations.

use api_meta::{Timestamp, Zone};

use crate::error::EvalError;

const SECOND: i64 = 1_000_000_000;
/// The range of timestamps: 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// Creates a timestamp within CEL's range.
pub(crate) fn timestamp(seconds: i64, nanos: u32) -> Result<Timestamp, EvalError> {
    if (FIRST..=LAST).contains(&seconds) {
        Ok(Timestamp::from_unix(seconds, nanos))
    } else {
        Err(EvalError::new("timestamp overflow"))
    }
}

pub(crate) fn is_first(time: Timestamp) -> bool {
    time.unix() == FIRST && time.nanos() == 0
}

pub(crate) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let time: Timestamp = text.parse().ok()?;
    timestamp(time.unix(), time.nanos()).ok()
}

/// Adds nanoseconds to a timestamp.
pub(crate) fn moved(time: Timestamp, by: i128) -> Result<Timestamp, EvalError> {
    let total = total(time) + by;
    let seconds = total.div_euclid(SECOND.into());
    let nanos = total.rem_euclid(SECOND.into());
    let overflow = || EvalError::new("timestamp overflow");
    timestamp(
        i64::try_from(seconds).map_err(|_| overflow())?,
        u32::try_from(nanos).map_err(|_| overflow())?,
    )
}

/// Returns the nanoseconds since 1970.
pub(crate) fn total(time: Timestamp) -> i128 {
    i128::from(time.unix()) * i128::from(SECOND) + i128::from(time.nanos())
}

/// Formats a duration in seconds with the necessary fraction digits, such as `1.5s`.
pub(crate) fn show_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) =
        (nanos.unsigned_abs() / SECOND as u64, nanos.unsigned_abs() % SECOND as u64);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// Returns a part of a timestamp in a time zone, by the accessor's name.
pub(crate) fn part(time: Timestamp, zone: Option<&str>, method: &str) -> Result<i64, EvalError> {
    let local = moved_freely(time, offset(zone.unwrap_or("UTC"), time)?);
    let text = local.to_string();
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<i64>().ok());
    let mut next = || numbers.next().unwrap_or_default();
    let (year, month, day, hour, minute, second) = (next(), next(), next(), next(), next(), next());
    let days = local.unix().div_euclid(86_400);
    Ok(match method {
        "getFullYear" => year,
        "getMonth" => month - 1,
        "getDate" => day,
        "getDayOfMonth" => day - 1,
        "getDayOfYear" => {
            let first: Timestamp = format!("{year:04}-01-01T00:00:00Z").parse().unwrap_or_default();
            days - first.unix().div_euclid(86_400)
        }
        // 1970-01-01 was a Thursday.
        "getDayOfWeek" => (days + 4).rem_euclid(7),
        "getHours" => hour,
        "getMinutes" => minute,
        "getSeconds" => second,
        _ => i64::from(local.nanos()) / 1_000_000,
    })
}

fn moved_freely(time: Timestamp, seconds: i64) -> Timestamp {
    Timestamp::from_unix(time.unix().saturating_add(seconds), time.nanos())
}

/// Returns the offset from UTC in seconds, for a zone name or for hours and minutes.
fn offset(zone: &str, at: Timestamp) -> Result<i64, EvalError> {
    if zone.is_empty() {
        return Ok(0);
    }
    if let Some(zone) = Zone::named(zone) {
        return Ok(zone.offset(at));
    }
    let unknown = || EvalError::Failed(format!("unknown time zone {zone}"));
    let (sign, digits) = match zone.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, zone.strip_prefix('+').unwrap_or(zone)),
    };
    let (hours, minutes) = digits.split_once(':').ok_or_else(unknown)?;
    let read = |n: &str| n.parse::<i64>().ok().filter(|n| (0..100).contains(n));
    match (read(hours), read(minutes)) {
        (Some(hours), Some(minutes)) => Ok(sign * (hours * 3600 + minutes * 60)),
        _ => Err(unknown()),
    }
}
