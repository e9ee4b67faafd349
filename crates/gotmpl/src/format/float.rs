//! Floats by `%e`, `%f`, `%g` and `%v`.

use super::Flags;

/// The number without padding; `None` for a verb that floats have not.
pub(super) fn format(value: f64, verb: char, flags: Flags) -> Option<String> {
    let magnitude = value.abs();
    let body = if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        "Inf".to_owned()
    } else {
        match verb {
            'v' | 'g' => general(magnitude, flags),
            'G' => general(magnitude, flags).to_uppercase(),
            'e' => exponent(&format!("{:.*e}", flags.precision.unwrap_or(6), magnitude)),
            'E' => {
                exponent(&format!("{:.*e}", flags.precision.unwrap_or(6), magnitude)).to_uppercase()
            }
            'f' | 'F' => format!("{:.*}", flags.precision.unwrap_or(6), magnitude),
            _ => return None,
        }
    };
    if !matches!(verb, 'v' | 'g' | 'G' | 'e' | 'E' | 'f' | 'F') {
        return None;
    }
    let sign = match () {
        () if value.is_sign_negative() && !value.is_nan() => "-",
        () if flags.plus || value.is_infinite() => "+",
        () if flags.space => " ",
        () => "",
    };
    Some(format!("{sign}{body}"))
}

/// Rust's `1.5e7` as Go's `1.5e+07`.
fn exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// The shorter of the two notations, as Go decides it: an exponent below -4, or not below the precision.
fn general(value: f64, flags: Flags) -> String {
    let scientific = match flags.precision {
        Some(precision) => format!("{:.*e}", precision.max(1) - 1, value),
        None => format!("{value:e}"),
    };
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i64 = power.parse().unwrap_or(0);
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    let digits = mantissa.len() - usize::from(mantissa.contains('.'));
    let digits = i64::try_from(digits).unwrap_or(i64::MAX);
    let threshold = match flags.precision {
        // Shortest: a fixed six, so that a million prints as 1e+06.
        None => 6,
        Some(precision) => {
            let precision = i64::try_from(precision.max(1)).unwrap_or(i64::MAX);
            if precision > digits && digits > power { digits } else { precision }
        }
    };
    if power < -4 || power >= threshold {
        return exponent(&format!("{mantissa}e{power}"));
    }
    let decimals = usize::try_from(digits - 1 - power).unwrap_or(0);
    format!("{value:.decimals$}")
}
