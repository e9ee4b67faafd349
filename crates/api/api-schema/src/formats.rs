//! Validation of string formats. Unknown formats are not checked.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Reports whether a string has the format. Unknown formats always match.
pub(crate) fn matches(format: &str, text: &str) -> bool {
    match format {
        "date" => {
            text.len() == 10 && format!("{text}T00:00:00Z").parse::<api_meta::Timestamp>().is_ok()
        }
        "date-time" | "datetime" => text.parse::<api_meta::Timestamp>().is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "hostname" => is_hostname(text),
        "email" => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && !text.contains(char::is_whitespace) && is_hostname(host)
        }),
        "uri" => {
            text.split_once(':').is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty())
                || text.starts_with('/')
        }
        "byte" => is_base64(text),
        "duration" => is_duration(text),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        }
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match (address.parse::<Ipv4Addr>(), address.parse::<Ipv6Addr>()) {
        (Ok(_), _) => 32,
        (_, Ok(_)) => 128,
        _ => return false,
    };
    bits.parse::<u8>().is_ok_and(|b| b <= most)
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let digits = plain.len() == 32 && plain.bytes().all(|b| b.is_ascii_hexdigit());
    digits && version.is_none_or(|v| plain.chars().nth(12) == Some(v))
}

fn is_hostname(text: &str) -> bool {
    let label = |l: &str| {
        let inner = l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        (1..=63).contains(&l.len()) && inner && !l.starts_with('-') && !l.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

/// Reports whether a string is a duration of Go (`1h30m`) or of upstream's format library (`3 weeks`).
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 30] = [
        "ns", "us", "µs", "μs", "ms", "s", "m", "h", "d", "w", "nano", "micro", "milli", "sec",
        "secs", "second", "seconds", "min", "mins", "minute", "minutes", "hr", "hrs", "hour",
        "hours", "day", "days", "week", "weeks", "wk",
    ];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text).trim();
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let number =
            rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (digits, tail) = rest.split_at(number);
        let tail = tail.trim_start();
        let unit = tail.len() - tail.trim_start_matches(char::is_alphabetic).len();
        let (unit, tail) = tail.split_at(unit);
        if digits.parse::<f64>().is_err() || !UNITS.contains(&unit) {
            return false;
        }
        any = true;
        rest = tail.trim_start();
    }
    any
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn validates_formats() {
        for (format, good, bad) in [
            ("date", "2024-02-29", "2023-02-29"),
            ("date-time", "2024-01-02T03:04:05Z", "2024-01-02"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fd00::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "02:42:ac:11:00:02", "02:42"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("hostname", "a.b-c", "-a"),
            ("email", "a@b.c", "a.b.c"),
            ("uri", "https://a/b", "a b"),
            ("byte", "YQ==", "Y"),
            ("duration", "1h30m", "1 parsec"),
            ("hexcolor", "#aabbcc", "#ab"),
        ] {
            assert!(matches(format, good), "{format} {good}");
            assert!(!matches(format, bad), "{format} {bad}");
        }
        assert!(matches("unheard-of", "anything"));
    }
}
