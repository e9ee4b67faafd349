//! The function `'…'.format([…])`, and the formatting of values in messages.

use api_meta::go_escape;
use data_encoding::HEXLOWER;

use crate::{
    error::EvalError,
    time,
    value::{List, Value, Work},
};

/// Formats a double like Go: the fewest digits that identify it, with an exponent for very large and small numbers.
pub(crate) fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..21).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Quotes a string. As cel-go, control characters without a short escape stay.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match go_escape(c) {
            Some(escape) => out.push_str(escape),
            None => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a value for an error message.
pub(crate) fn show(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => text.to_string(),
        other => format_value(&mut Work(10_000), other)
            .unwrap_or_else(|_| other.type_of().name().to_owned()),
    }
}

/// Formats any value, for `%s`.
fn format_value(work: &mut Work, value: &Value<'_>) -> Result<String, EvalError> {
    work.spend(8)?;
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) if value.is_infinite() => {
            if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        Value::Double(value) => double(*value),
        Value::String(text) => {
            work.spend(text.len() as u64)?;
            text.to_string()
        }
        Value::Bytes(bytes) => {
            work.spend(bytes.len() as u64)?;
            String::from_utf8_lossy(bytes).into_owned()
        }
        Value::Timestamp(time) => time.exact(),
        Value::Duration(nanos) => time::show_duration(*nanos),
        Value::Type(ty) => ty.name().to_owned(),
        Value::List(list) => {
            let mut parts = Vec::new();
            for item in list.iter() {
                parts.push(format_value(work, &item?)?);
            }
            format!("[{}]", parts.join(", "))
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            for entry in map.entries() {
                let (key, value) = entry?;
                parts.push(format!(
                    "{}: {}",
                    format_value(work, &key)?,
                    format_value(work, &value)?
                ));
            }
            // Sort, so that the order does not depend on the construction of the map.
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Optional(None) => "optional.none()".to_owned(),
        Value::Optional(Some(value)) => format!("optional.of({})", format_value(work, value)?),
        Value::Object(_) => {
            return Err(clause(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, \
                lists, types, durations, and timestamps",
                value,
            ));
        }
        Value::Opaque(opaque) => opaque.to_string(),
    })
}

fn clause(rule: &str, value: &Value<'_>) -> EvalError {
    let ty = value.type_of();
    EvalError::Failed(format!("error during formatting: {rule}, was given {}", ty.name()))
}

/// Formats a string with clauses and arguments.
pub(crate) fn format(work: &mut Work, text: &str, args: &List<'_>) -> Result<String, EvalError> {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut next = 0;
    while let Some(c) = chars.next() {
        work.spend(1)?;
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let precision = precision(&mut chars)?;
        let Some(verb) = chars.next() else {
            return Err(EvalError::new(
                "could not parse formatting clause: unexpected end of string",
            ));
        };
        if next >= args.len() {
            return Err(EvalError::Failed(format!("index {next} out of range")));
        }
        let value = args.get(next)?;
        next += 1;
        let piece = format_with_verb(work, verb, precision, &value)?;
        work.spend(piece.len() as u64)?;
        out.push_str(&piece);
    }
    Ok(out)
}

/// Parses the precision before a verb, such as `.3`.
fn precision(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
) -> Result<Option<usize>, EvalError> {
    if chars.next_if_eq(&'.').is_none() {
        return Ok(None);
    }
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    match digits.parse::<usize>() {
        // The maximum number of decimal digits of a double.
        Ok(precision) if precision <= 1100 => Ok(Some(precision)),
        _ => {
            Err(EvalError::new("could not parse formatting clause: error while parsing precision"))
        }
    }
}

fn format_with_verb(
    work: &mut Work,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<String, EvalError> {
    match verb {
        's' => format_value(work, value),
        'd' => match value {
            Value::Int(_) | Value::Uint(_) => format_value(work, value),
            Value::Double(double) if !double.is_finite() => format_value(work, value),
            Value::Double(_) => format_value(work, value),
            other => Err(clause("decimal clause can only be used on integers", other)),
        },
        'f' => format_fixed(value, precision.unwrap_or(6)),
        'e' => format_scientific(value, precision.unwrap_or(6)),
        'b' => match value {
            Value::Int(value) => Ok(signed(*value, |n| format!("{n:b}"))),
            Value::Uint(value) => Ok(format!("{value:b}")),
            Value::Bool(value) => Ok(u8::from(*value).to_string()),
            other => Err(clause("only integers and bools can be formatted as binary", other)),
        },
        'o' => match value {
            Value::Int(value) => Ok(signed(*value, |n| format!("{n:o}"))),
            Value::Uint(value) => Ok(format!("{value:o}")),
            other => Err(clause("octal clause can only be used on integers", other)),
        },
        'x' => hex(value),
        'X' => hex(value).map(|text| text.to_ascii_uppercase()),
        other => Err(EvalError::Failed(format!(
            "could not parse formatting clause: unrecognized formatting clause \"{other}\""
        ))),
    }
}

fn signed(value: i64, show: fn(u64) -> String) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", show(value.unsigned_abs()))
}

fn hex(value: &Value<'_>) -> Result<String, EvalError> {
    match value {
        Value::Int(value) => Ok(signed(*value, |n| format!("{n:x}"))),
        Value::Uint(value) => Ok(format!("{value:x}")),
        Value::String(text) => Ok(HEXLOWER.encode(text.as_bytes())),
        Value::Bytes(raw) => Ok(HEXLOWER.encode(raw)),
        other => {
            Err(clause("only integers, byte buffers, and strings can be formatted as hex", other))
        }
    }
}

fn number(value: &Value<'_>, rule: &str) -> Result<f64, EvalError> {
    match value {
        Value::Double(value) => Ok(*value),
        Value::Int(value) => Ok(*value as f64),
        Value::Uint(value) => Ok(*value as f64),
        other => Err(clause(rule, other)),
    }
}

fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        return Some("NaN".to_owned());
    }
    value
        .is_infinite()
        .then(|| if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() })
}

/// Formats with commas between thousands, as upstream does for American English.
fn format_fixed(value: &Value<'_>, precision: usize) -> Result<String, EvalError> {
    let value = number(value, "fixed-point clause can only be used on doubles")?;
    if let Some(special) = special(value) {
        return Ok(special);
    }
    let text = format!("{value:.precision$}");
    let (digits, sign) = text.strip_prefix('-').map_or((text.as_str(), ""), |d| (d, "-"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !fraction.is_empty() {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    Ok(grouped)
}

/// Formats in scientific notation, such as `3.14×10⁰⁰`.
fn format_scientific(value: &Value<'_>, precision: usize) -> Result<String, EvalError> {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let value = number(value, "scientific clause can only be used on doubles")?;
    if let Some(special) = special(value) {
        return Ok(special);
    }
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let mut out = format!("{digits}×10{}", if exponent < 0 { "⁻" } else { "" });
    for digit in format!("{:02}", exponent.abs()).bytes() {
        out.push(RAISED[usize::from(digit - b'0')]);
    }
    Ok(out)
}
