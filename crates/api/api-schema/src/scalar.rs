//! Decodes scalars: the accepted JSON values and upstream's canonical text.

use std::borrow::Cow;

use api_meta::{Quantity, Timestamp};
use serde_json::{Number, Value};

use crate::node::Shape;

/// A JSON scalar from the parser, or the mark of an object.
pub(crate) enum Scalar<'a> {
    Bool(bool),
    Number(Number),
    Str(&'a str),
    String(String),
    Object,
}

/// The reason why a scalar was rejected.
pub(crate) enum Refusal {
    /// A wrong JSON type. The string is Go's name of the found type.
    Mismatch(Cow<'static, str>),
    /// A message of the type's own decoder.
    Message(String),
}

impl Scalar<'_> {
    pub(crate) fn into_value(self) -> Value {
        match self {
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Number(number) => Value::Number(shortest(number)),
            Scalar::Str(text) => Value::String(text.to_owned()),
            Scalar::String(text) => Value::String(text),
            Scalar::Object => Value::Null,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Scalar::Str(text) => Some(text),
            Scalar::String(text) => Some(text),
            _ => None,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Scalar::Bool(_) => "bool",
            Scalar::Number(_) => "number",
            Scalar::Str(_) | Scalar::String(_) => "string",
            Scalar::Object => "object",
        }
    }
}

/// Converts whole floats to integers, because Go writes `1` instead of `1.0`.
fn shortest(number: Number) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
            Number::from(float as i64)
        }
        _ => number,
    }
}

/// Decodes a scalar of a built-in type. Returns `None` for a zero time, which means absent.
pub(crate) fn read(shape: &Shape, scalar: Scalar<'_>) -> Result<Option<Value>, Refusal> {
    match (shape, &scalar) {
        (Shape::Any, _)
        | (Shape::String | Shape::Duration, Scalar::Str(_) | Scalar::String(_))
        | (Shape::IntOrString, Scalar::Str(_) | Scalar::String(_))
        | (Shape::Boolean, Scalar::Bool(_))
        | (Shape::Number, Scalar::Number(_)) => Ok(Some(scalar.into_value())),
        (Shape::Integer { bits, unsigned }, Scalar::Number(number)) => {
            integer(number, *bits, *unsigned)
                .map(Some)
                .ok_or_else(|| Refusal::Mismatch(format!("number {number}").into()))
        }
        (Shape::IntOrString, _) => int_or_string(&scalar).map(Some),
        (Shape::Bytes, Scalar::Str(_) | Scalar::String(_)) => base64(scalar).map(Some),
        (Shape::Quantity, _) => quantity(scalar).map(Some),
        (Shape::Time, _) => time(scalar, Timestamp::to_string),
        (Shape::MicroTime, _) => time(scalar, |t| t.micros()),
        _ => Err(Refusal::Mismatch(scalar.word().into())),
    }
}

fn integer(number: &Number, bits: u8, unsigned: bool) -> Option<Value> {
    let value = number.as_i64()?;
    let fits = match (bits, unsigned) {
        (32, false) => i32::try_from(value).is_ok(),
        (32, true) => u32::try_from(value).is_ok(),
        _ => true,
    };
    fits.then(|| Value::from(value))
}

fn int_or_string(scalar: &Scalar<'_>) -> Result<Value, Refusal> {
    let what = match scalar {
        Scalar::Number(number) => match integer(number, 32, false) {
            Some(value) => return Ok(value),
            None => format!("number {number}"),
        },
        other => other.word().to_owned(),
    };
    let message = format!("json: cannot unmarshal {what} into Go value of type int32");
    Err(Refusal::Message(message))
}

/// Reports whether a quantity is obviously canonical: up to three digits and a common suffix. Most quantities are.
fn is_canonical(text: &str) -> bool {
    let (digits, suffix) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let canonical_number = matches!(digits.len(), 1..=3) && !digits.starts_with('0');
    canonical_number && matches!(suffix, "" | "m" | "Mi" | "Gi" | "Ki" | "M" | "G" | "k")
}

fn quantity(scalar: Scalar<'_>) -> Result<Value, Refusal> {
    let number;
    let text = match &scalar {
        Scalar::Number(n) => {
            number = n.to_string();
            &number
        }
        other => match other.text() {
            Some(text) => text.trim(),
            None => {
                let message = api_meta::ParseQuantityError::Format.to_string();
                return Err(Refusal::Message(message));
            }
        },
    };
    if is_canonical(text) {
        return Ok(Value::String(text.to_owned()));
    }
    let quantity = Quantity::parse(text).map_err(|e| Refusal::Message(e.to_string()))?;
    Ok(Value::String(quantity.to_string()))
}

fn time(
    scalar: Scalar<'_>,
    write: impl FnOnce(&Timestamp) -> String,
) -> Result<Option<Value>, Refusal> {
    let Some(text) = scalar.text() else {
        let word = scalar.word();
        let message = format!("json: cannot unmarshal {word} into Go value of type string");
        return Err(Refusal::Message(message));
    };
    let stamp: Timestamp = text.parse().map_err(|_| Refusal::Message(time_message(text)))?;
    // Go's zero time is the first second of the year 1, and is written as null.
    const ZERO: i64 = -62_135_596_800;
    if stamp.unix() == ZERO && stamp.nanos() == 0 {
        return Ok(None);
    }
    Ok(Some(Value::String(write(&stamp))))
}

fn time_message(text: &str) -> String {
    let layout = "2006-01-02T15:04:05Z07:00";
    let quoted = api_meta::go_quote(text);
    format!("parsing time {quoted} as \"{layout}\": cannot parse {quoted} as \"2006\"")
}

/// Validates base64 like Go: the standard alphabet, padding required, line breaks ignored.
fn base64(scalar: Scalar<'_>) -> Result<Value, Refusal> {
    let Value::String(mut text) = scalar.into_value() else { return Ok(Value::Null) };
    if let Some(at) = bad_base64(text.as_bytes()) {
        return Err(Refusal::Message(format!("illegal base64 data at input byte {at}")));
    }
    if text.bytes().any(|b| matches!(b, b'\n' | b'\r')) {
        text.retain(|c| c != '\n' && c != '\r');
    }
    Ok(Value::String(text))
}

/// Returns the offset of the first invalid byte as Go reports it: an invalid character, or the start of an incomplete
/// group.
fn bad_base64(text: &[u8]) -> Option<usize> {
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let is_break = |b: &u8| matches!(b, b'\n' | b'\r');
    let mut digits = 0;
    for (at, byte) in text.iter().copied().enumerate().filter(|(_, byte)| !is_break(byte)) {
        if is_digit(byte) {
            digits = (digits + 1) % 4;
            continue;
        }
        if byte != b'=' || digits < 2 {
            return Some(at);
        }
        let mut rest = (at + 1..text.len()).filter(|at| !is_break(&text[*at]));
        if digits == 2 {
            match rest.next() {
                None => return Some(text.len()),
                Some(next) if text[next] != b'=' => return Some(next - 1),
                Some(_) => {}
            }
        }
        return rest.next();
    }
    (digits > 0).then(|| text.len() - digits)
}

#[cfg(test)]
mod tests {
    use super::bad_base64;

    /// The offsets were recorded from Go's decoder.
    #[test]
    fn reports_invalid_base64_like_go() {
        for (text, at) in [
            ("", None),
            ("YQ==", None),
            ("YWI=", None),
            ("YW\nJj\r\n", None),
            ("???", Some(0)),
            ("YQ", Some(0)),
            ("YWJjYQ", Some(4)),
            ("YQ=", Some(3)),
            ("YQ=x", Some(2)),
            ("Y=", Some(1)),
            ("=", Some(0)),
            ("a b==", Some(1)),
            ("YQ==YQ==", Some(4)),
            ("YWI==", Some(4)),
        ] {
            assert_eq!(bad_base64(text.as_bytes()), at, "{text}");
        }
    }
}
