//! Resolves the types of scalars like Go's YAML 1.1.

use serde_json::{Number, Value};

use super::error::YamlError;

/// The prefix that `!!` abbreviates.
pub(super) const PREFIX: &str = "tag:yaml.org,2002:";
/// The tag of `<<`.
pub(super) const MERGE: &str = "tag:yaml.org,2002:merge";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer that only fits into an unsigned type.
    Uint(u64),
    Float(f64),
    Text(String),
}

impl Scalar {
    fn tag(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Uint(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
        }
    }

    /// Returns the JSON value that Go writes for the scalar.
    pub(super) fn into_value(self) -> Result<Value, YamlError> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Int(number) => number.into(),
            Self::Uint(number) => number.into(),
            Self::Float(number) => Value::Number(json_number(number)?),
            Self::Text(text) => text.into(),
        })
    }

    /// Returns the scalar as a key of a JSON object, and as Go's messages show it.
    pub(super) fn into_key(self) -> Result<(String, String), YamlError> {
        let text = match self {
            Self::Text(text) => {
                let quoted = api_meta::go_quote(&text);
                return Ok((text, quoted));
            }
            Self::Int(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Float(number) => float_key(number),
            Self::Null | Self::Uint(_) => {
                let of = if self == Self::Null { "%!s(<nil>)" } else { "uint64" };
                return Err(YamlError::plain(format!("unsupported map key of type: {of}")));
            }
        };
        Ok((text.clone(), text))
    }
}

/// Resolves a scalar. `plain` means that it has neither quotes nor a tag.
pub(super) fn scalar(tag: Option<&str>, plain: bool, text: String) -> Result<Scalar, YamlError> {
    let Some(tag) = tag else {
        return Ok(if plain {
            resolve_untagged(&text).unwrap_or(Scalar::Text(text))
        } else {
            Scalar::Text(text)
        });
    };
    let resolved = match tag.strip_prefix(PREFIX) {
        Some("str") => return Ok(Scalar::Text(text)),
        Some("binary") => return binary(&text),
        Some("bool" | "int" | "float" | "null" | "timestamp") => resolve_untagged(&text),
        // Application tags do not determine a JSON type.
        _ => return Ok(Scalar::Text(text)),
    };
    let expected = tag.strip_prefix(PREFIX).unwrap_or_default();
    match (expected, resolved) {
        ("float", Some(Scalar::Int(number))) => Ok(Scalar::Float(number as f64)),
        ("timestamp", None) if is_timestamp(&text) => Ok(Scalar::Text(text)),
        (expected, Some(scalar)) if scalar.tag() == expected => Ok(scalar),
        (expected, resolved) => {
            let found = match &resolved {
                Some(scalar) => scalar.tag(),
                None if text == "<<" => "merge",
                None if is_timestamp(&text) => "timestamp",
                None => "str",
            };
            Err(YamlError::new(format!("cannot decode !!{found} `{text}` as a !!{expected}")))
        }
    }
}

fn binary(text: &str) -> Result<Scalar, YamlError> {
    use base64::Engine as _;
    let packed: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = base64::engine::general_purpose::STANDARD.decode(packed);
    let Ok(bytes) = decoded else {
        return Err(YamlError::new("!!binary value contains invalid base64 data".to_owned()));
    };
    Ok(Scalar::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the scalar that an untagged text denotes, or `None` for a string.
fn resolve_untagged(text: &str) -> Option<Scalar> {
    let first = text.bytes().next().unwrap_or(b'~');
    if !first.is_ascii_digit() && !b"+-.yYnNtTfFoO~".contains(&first) {
        return None;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Scalar::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Some(Scalar::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Some(Scalar::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" => return Some(Scalar::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Some(Scalar::Float(f64::INFINITY));
        }
        "-.inf" | "-.Inf" | "-.INF" => return Some(Scalar::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    match first {
        b'.' => float(text),
        b'0'..=b'9' | b'+' | b'-' => number(text),
        _ => None,
    }
}

fn number(text: &str) -> Option<Scalar> {
    if is_timestamp(text) {
        return None;
    }
    let plain = text.replace('_', "");
    let (negative, digits) = match plain.as_bytes().first() {
        Some(b'-') => (true, &plain[1..]),
        Some(b'+') => (false, &plain[1..]),
        _ => (false, &plain[..]),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.bytes().all(|b| b.is_ascii_alphanumeric())
        && let Ok(magnitude) = u64::from_str_radix(digits, radix)
    {
        let signed = i64::try_from(magnitude);
        let minimum = negative && magnitude == 1 << 63;
        // Go's unsigned numbers have no sign, not even a plus.
        let signless = !plain.starts_with(['+', '-']);
        match signed {
            _ if minimum => return Some(Scalar::Int(i64::MIN)),
            Ok(number) => return Some(Scalar::Int(if negative { -number } else { number })),
            Err(_) if signless => return Some(Scalar::Uint(magnitude)),
            Err(_) => {}
        }
    }
    is_float(&plain).then(|| float(&plain)).flatten()
}

/// Reports whether a text is a decimal number with a point or an exponent, or digits alone.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    mantissa && exponent
}

fn float(text: &str) -> Option<Scalar> {
    // Go does not accept numbers that are too large.
    let number: f64 = is_float(text).then(|| text.parse().ok()).flatten()?;
    number.is_finite().then_some(Scalar::Float(number))
}

/// Reports whether a text is a date, or a date and a time, which Go treats as a string.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    let year = bytes.len() > 4 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-';
    if !year {
        return false;
    }
    let date = text[5..].split(['T', 't', ' ']).next().unwrap_or_default();
    let in_range = |text: &str, most: u32| {
        matches!(text.len(), 1 | 2)
            && text.parse::<u32>().is_ok_and(|number| (1..=most).contains(&number))
    };
    matches!(date.split_once('-'), Some((month, day)) if in_range(month, 12) && in_range(day, 31))
}

/// Converts a float to a JSON number like Go's writing and reading: whole numbers are integers.
fn json_number(number: f64) -> Result<Number, YamlError> {
    const INTEGERS: f64 = 1e21;
    if number.fract() == 0.0 && number.abs() < INTEGERS {
        if number >= i64::MIN as f64 && number < i64::MAX as f64 {
            return Ok((number as i64).into());
        }
        if number > 0.0 && number < u64::MAX as f64 {
            return Ok((number as u64).into());
        }
    }
    Number::from_f64(number).ok_or_else(|| {
        let literal = match number {
            number if number.is_nan() => "NaN",
            number if number > 0.0 => "+Inf",
            _ => "-Inf",
        };
        YamlError::plain(format!("json: unsupported value: {literal}"))
    })
}

/// Formats a float as a key: Go's shortest form in single precision, `1.5` or `1e+06`.
fn float_key(number: f64) -> String {
    let single = number as f32;
    if single.is_nan() {
        return ".nan".to_owned();
    }
    if single.is_infinite() {
        return if single > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{single:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return single.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
