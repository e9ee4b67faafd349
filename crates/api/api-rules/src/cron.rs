//! Cron schedules with five fields.

use api_meta::{GoDuration, ParseDurationError, Timestamp, Zone, go_quote};

/// A cron schedule in a time zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// `true` if a day field is `*`: then both day fields must match, otherwise one is enough.
    any_day: bool,
    every: Option<u64>,
    zone: Zone,
}

/// The error for an invalid schedule, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("failed to parse duration {text}: {error}")]
    Period { text: String, error: ParseDurationError },
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    #[error("too many {sign}: {part}")]
    Repeated { sign: &'static str, part: String },
    #[error("beginning of range ({low}) below minimum ({least}): {part}")]
    BelowMinimum { low: u32, least: u32, part: String },
    #[error("end of range ({high}) above maximum ({most}): {part}")]
    AboveMaximum { high: u32, most: u32, part: String },
    #[error("beginning of range ({low}) beyond end of range ({high}): {part}")]
    Order { low: u32, high: u32, part: String },
    #[error("step of range should be a positive number: {0}")]
    Step(String),
    #[error("negative number ({number}) not allowed: {text}")]
    Negative { number: i64, text: String },
    #[error("failed to parse int from {text}: strconv.Atoi: parsing {}: {reason}", go_quote(text))]
    Number { text: String, reason: &'static str },
}

const HOUR: i64 = 60;
const DAY: i64 = 24 * HOUR;
const MONTHS: &[&str] =
    &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// Parses five fields or an `@` descriptor.
    pub fn parse(text: &str, zone: Zone) -> Result<Self, ScheduleError> {
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(period) = text.strip_prefix("@every ") {
            let period = period.parse::<GoDuration>();
            let period =
                period.map_err(|error| ScheduleError::Period { text: text.to_owned(), error })?;
            let seconds = u64::try_from(period.nanos() / 1_000_000_000).unwrap_or(0).max(1);
            return Ok(Self { every: Some(seconds), ..Self::empty(zone) });
        }
        if text.starts_with('@') {
            return Err(ScheduleError::Descriptor(text.to_owned()));
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            let fields = fields.into_iter().map(str::to_owned).collect();
            return Err(ScheduleError::FieldCount(fields));
        };
        let (days, weekdays) = (field(days, 1, 31, &[])?, field(weekdays, 0, 6, WEEKDAYS)?);
        Ok(Self {
            minutes: field(minutes, 0, 59, &[])?.set,
            hours: field(hours, 0, 23, &[])?.set,
            days: days.set,
            months: field(months, 1, 12, MONTHS)?.set,
            weekdays: weekdays.set,
            any_day: days.any || weekdays.any,
            every: None,
            zone,
        })
    }

    fn empty(zone: Zone) -> Self {
        let (minutes, hours, days, months, weekdays) = (0, 0, 0, 0, 0);
        Self { minutes, hours, days, months, weekdays, any_day: false, every: None, zone }
    }

    /// Returns the first time after `from`, or `None` if there is none within five years. As upstream, times in the
    /// skipped hour in spring do not run, and times in the repeated hour in autumn run twice.
    pub fn next(&self, from: Timestamp) -> Option<Timestamp> {
        if let Some(seconds) = self.every {
            return Some(Timestamp::from_unix(from.unix() + seconds as i64, 0));
        }
        let mut minute = from.unix().div_euclid(60) + 1;
        let end = minute + 5 * 366 * 24 * 60;
        while minute < end {
            let offset = self.offset(minute);
            let local = minute + offset;
            let (day, of_day) = (local.div_euclid(DAY), local.rem_euclid(DAY));
            if !self.matches_day(day) {
                // If the clocks change in between, this step would miss midnight. Then step by the hour.
                let midnight = minute + DAY - of_day;
                let straight = self.offset(midnight) == offset;
                minute = if straight { midnight } else { minute + HOUR - of_day % HOUR };
            } else if self.hours & (1 << (of_day / HOUR)) == 0 {
                minute += HOUR - of_day % HOUR;
            } else if self.minutes & (1 << (of_day % HOUR)) == 0 {
                minute += 1;
            } else {
                return Some(Timestamp::from_unix(minute * 60, 0));
            }
        }
        None
    }

    /// Returns the zone's offset from UTC in minutes.
    fn offset(&self, minute: i64) -> i64 {
        self.zone.offset(Timestamp::from_unix(minute * 60, 0)).div_euclid(60)
    }

    fn matches_day(&self, day: i64) -> bool {
        let date = Timestamp::from_unix(day * 86_400, 0).to_string();
        let number = |range: std::ops::Range<usize>| date[range].parse::<u32>().unwrap_or(0);
        let (month, of_month) = (number(5..7), number(8..10));
        // 1970-01-01 was a Thursday.
        let weekday = (day + 4).rem_euclid(7);
        let by_date = self.days & (1 << of_month) != 0;
        let by_weekday = self.weekdays & (1 << weekday) != 0;
        let right = if self.any_day { by_date && by_weekday } else { by_date || by_weekday };
        right && self.months & (1 << month) != 0
    }
}

/// The numbers that a field matches, as a bit set.
struct Field {
    set: u64,
    /// `true` if the field is `*` without a step.
    any: bool,
}

/// Parses a field of comma-separated parts: `*`, `5` or `1-5`, each with an optional `/STEP`.
fn field(text: &str, least: u32, most: u32, names: &[&str]) -> Result<Field, ScheduleError> {
    let number = |text: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        named.map_or_else(|| integer(text), |at| Ok(at as u32 + least))
    };
    let mut field = Field { set: 0, any: false };
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((_, step)) if step.contains('/') => {
                return Err(ScheduleError::Repeated { sign: "slashes", part: part.to_owned() });
            }
            Some((range, step)) => (range, Some(integer(step)?)),
        };
        let all = matches!(range, "*" | "?");
        let (low, high) = match range.split_once('-') {
            _ if all => (least, most),
            Some((_, high)) if high.contains('-') => {
                return Err(ScheduleError::Repeated { sign: "hyphens", part: part.to_owned() });
            }
            Some((low, high)) => (number(low)?, number(high)?),
            None if step.is_some() => (number(range)?, most),
            None => (number(range)?, number(range)?),
        };
        let step = step.unwrap_or(1);
        let part = || part.to_owned();
        if low < least {
            return Err(ScheduleError::BelowMinimum { low, least, part: part() });
        } else if high > most {
            return Err(ScheduleError::AboveMaximum { high, most, part: part() });
        } else if low > high {
            return Err(ScheduleError::Order { low, high, part: part() });
        } else if step == 0 {
            return Err(ScheduleError::Step(part()));
        }
        // With a step, `*` does not match all days, so either day field may match.
        field.any |= all && step == 1;
        (low..=high).step_by(step as usize).for_each(|number| field.set |= 1 << number);
    }
    Ok(field)
}

fn integer(text: &str) -> Result<u32, ScheduleError> {
    let failed = |reason| ScheduleError::Number { text: text.to_owned(), reason };
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(ScheduleError::Negative { number, text: text.to_owned() }),
        Ok(number) => u32::try_from(number).map_err(|_| failed("value out of range")),
        Err(_) => Err(failed("invalid syntax")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_next_time() {
        for (schedule, from, next) in [
            ("* * * * *", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"),
            ("0 9 * * mon-fri", "2026-01-02T10:00:00Z", "2026-01-05T09:00:00Z"),
            ("30 4 1,15 * *", "2026-01-02T00:00:00Z", "2026-01-15T04:30:00Z"),
            ("0 0 13 * 5", "2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            // Every other day or a Monday. With a step of one: every day that is a Monday.
            ("0 0 */2 * 1", "2026-01-03T00:00:00Z", "2026-01-05T00:00:00Z"),
            ("0 0 */2 * 1", "2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z"),
            ("0 0 */1 * 1", "2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"),
            ("@hourly", "2026-12-31T23:30:00Z", "2027-01-01T00:00:00Z"),
            ("@every 90s", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30Z"),
        ] {
            let found =
                Schedule::parse(schedule, Zone::UTC).unwrap().next(from.parse().unwrap()).unwrap();
            assert_eq!(found.to_string(), next, "{schedule}");
        }
        assert_eq!(
            Schedule::parse("0 0 31 2 *", Zone::UTC)
                .unwrap()
                .next("2026-01-01T00:00:00Z".parse().unwrap()),
            None
        );
    }

    #[test]
    fn follows_clock_changes_of_zone() {
        for (zone, schedule, from, next) in [
            ("Asia/Kolkata", "0 9 * * *", "2026-01-01T00:00:00Z", "2026-01-01T03:30:00Z"),
            ("America/New_York", "0 0 1 * *", "2026-01-01T05:00:00Z", "2026-02-01T05:00:00Z"),
            ("America/New_York", "0 0 1 * *", "2026-03-02T00:00:00Z", "2026-04-01T04:00:00Z"),
            // 02:30 is skipped when clocks go forward, and 01:30 occurs twice when they go back.
            ("America/New_York", "30 2 * * *", "2026-03-08T00:00:00Z", "2026-03-09T06:30:00Z"),
            ("America/New_York", "30 1 * * *", "2026-11-01T00:00:00Z", "2026-11-01T05:30:00Z"),
            ("America/New_York", "30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
            // Clocks change at midnight, so this day has no 00:00.
            ("Africa/Cairo", "15 1 24 4 *", "2026-04-01T00:00:00Z", "2026-04-23T22:15:00Z"),
        ] {
            let zone_of = Zone::named(zone).unwrap();
            let found = Schedule::parse(schedule, zone_of).unwrap().next(from.parse().unwrap());
            assert_eq!(found.unwrap().to_string(), next, "{schedule} in {zone}");
        }
    }

    #[test]
    fn rejects_invalid_schedules() {
        for (bad, words) in [
            ("", "expected exactly 5 fields, found 0: []"),
            ("* *  * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/2/3 * * * *", "too many slashes: */2/3"),
            ("*/-2 * * * *", "negative number (-2) not allowed: -2"),
            (
                "x * * * *",
                "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
        ] {
            assert_eq!(Schedule::parse(bad, Zone::UTC).unwrap_err().to_string(), words, "{bad}");
        }
        let error = Schedule::parse("@every x", Zone::UTC).unwrap_err().to_string();
        let words = "failed to parse duration @every x: time: invalid duration \"x\"";
        assert!(error.starts_with(words), "{error}");
    }
}
