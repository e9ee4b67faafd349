//! Formats floats for `%e`, `%f`, `%g`, `%v`, `%x` and `%b`.

use super::flags::Flags;

/// Formats a number without padding. Returns `None` for a verb that floats do not support.
pub(super) fn format(value: f64, verb: char, flags: Flags) -> Option<String> {
    let magnitude = value.abs();
    let body = match verb.to_ascii_lowercase() {
        'v' | 'g' => general(magnitude, flags),
        'e' => exponent(&format!("{:.*e}", flags.precision.unwrap_or(6), magnitude)),
        'f' => format!("{:.*}", flags.precision.unwrap_or(6), magnitude),
        'x' => hexadecimal(magnitude, flags.precision),
        'b' => binary(magnitude),
        _ => return None,
    };
    if matches!(verb, 'V' | 'B') {
        return None;
    }
    let body = match verb {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value.is_infinite() => "Inf".to_owned(),
        'b' => body,
        _ if flags.sharp => pointed(&body, verb, flags.precision),
        _ => body,
    };
    let body = if verb.is_uppercase() { body.to_uppercase() } else { body };
    let sign = match () {
        () if value.is_sign_negative() && !value.is_nan() => "-",
        () if flags.plus || value.is_infinite() => "+",
        () if flags.space => " ",
        () => "",
    };
    Some(format!("{sign}{body}"))
}

/// Applies `#`: every number has a decimal point, and `%g` and `%x` keep trailing zeros.
fn pointed(body: &str, verb: char, precision: Option<usize>) -> String {
    let hex = verb.eq_ignore_ascii_case(&'x');
    let (number, exponent) =
        body.split_at(body.find(if hex { 'p' } else { 'e' }).unwrap_or(body.len()));
    let digits = match verb {
        'v' | 'g' | 'G' | 'x' | 'X' => precision.unwrap_or(6),
        _ => 0,
    };
    // The `x` of a prefix counts as a digit, and so does the zero of a number 0.
    let significant = number.trim_start_matches(['0', '.']).chars().filter(|c| *c != '.').count();
    let shown = if number == "0" { 1 } else { significant };
    let point = if number.contains('.') { "" } else { "." };
    format!("{number}{point}{}{exponent}", "0".repeat(digits.saturating_sub(shown)))
}

/// Splits a non-negative number into its 53-bit mantissa and the power of two of the mantissa's unit. The first bit of
/// a normal number is set.
fn parts(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let (power, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    match power {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, power - 1075),
    }
}

fn binary(value: f64) -> String {
    let (mantissa, power) = parts(value);
    format!("{mantissa}p{power:+}")
}

/// Formats like `0x1.8p+01`, with `precision` digits after the point, or as many as needed.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    let (mut mantissa, mut power) = parts(value);
    if mantissa == 0 {
        power = 0;
    } else {
        let shift = mantissa.leading_zeros() - 11;
        mantissa <<= shift;
        power += 52 - shift as i32;
    }
    if let Some(dropped @ 1..) = precision.map(|digits| 4 * 13usize.saturating_sub(digits)) {
        // Round to nearest, ties to even.
        let (half, rest) = (1u64 << (dropped - 1), mantissa & ((1 << dropped) - 1));
        mantissa >>= dropped;
        mantissa += u64::from(rest > half || rest == half && mantissa & 1 == 1);
        mantissa <<= dropped;
        if mantissa >> 53 == 1 {
            mantissa >>= 1;
            power += 1;
        }
    }
    let fraction = format!("{:013x}", mantissa & ((1 << 52) - 1));
    let fraction = match precision {
        None => fraction.trim_end_matches('0').to_owned(),
        Some(digits) => format!("{fraction:0<digits$.digits$}"),
    };
    let point = if fraction.is_empty() { "" } else { "." };
    let (sign, power) = (if power < 0 { '-' } else { '+' }, power.unsigned_abs());
    format!("0x{}{point}{fraction}p{sign}{power:02}", mantissa >> 52)
}

/// Converts Rust's `1.5e7` to Go's `1.5e+07`.
fn exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Formats in the shorter notation by Go's rule: scientific for an exponent below -4 or not below the precision.
fn general(value: f64, flags: Flags) -> String {
    let scientific = match flags.precision {
        Some(precision) => format!("{:.*e}", precision.max(1) - 1, value),
        None => format!("{value:e}"),
    };
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i64 = power.parse().unwrap_or(0);
    let mantissa = if mantissa.contains('.') {
        mantissa.trim_end_matches('0').trim_end_matches('.')
    } else {
        mantissa
    };
    let digits = mantissa.len() - usize::from(mantissa.contains('.'));
    let digits = i64::try_from(digits).unwrap_or(i64::MAX);
    let threshold = match flags.precision {
        // The shortest format has a fixed threshold of six, so that a million prints as 1e+06.
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
