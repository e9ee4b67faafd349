//! Parses Go's literals: numbers, strings and characters.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
    /// A number that only fits into 64 bits without a sign.
    Unsigned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberError {
    Syntax,
    /// A whole number that fits no type.
    Overflow,
}

impl NumberError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Syntax => "illegal number syntax",
            Self::Overflow => "integer overflow",
        }
    }
}

/// Parses a number in Go's syntax: signs, bases, underscores. Complex numbers are not supported.
pub(crate) fn parse(text: &str) -> Result<Number, NumberError> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
        return Err(NumberError::Syntax);
    }
    let clean = digits.replace('_', "");
    let lower = clean.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', rest @ ..] if !rest.is_empty() && rest.iter().all(u8::is_ascii_digit) => {
            (8, &lower[1..])
        }
        _ => (10, lower.as_str()),
    };
    if !body.starts_with(['+', '-'])
        && let Ok(value) = i128::from_str_radix(body, radix)
    {
        let signed = if negative { -value } else { value };
        if let Ok(value) = i64::try_from(signed) {
            return Ok(Number::Int(value));
        }
        // Go uses signed types for a number with a sign, even a plus.
        let bare = text.len() == digits.len();
        return if bare && u64::try_from(value).is_ok() {
            Ok(Number::Unsigned)
        } else {
            Err(NumberError::Overflow)
        };
    }
    let value = if radix == 16 { hex_float(body) } else { decimal(&lower) };
    match value.ok_or(NumberError::Syntax)? {
        _ if radix != 16 && !lower.contains(['.', 'e']) => Err(NumberError::Overflow),
        value => Ok(Number::Float(if negative { -value } else { value })),
    }
}

fn decimal(text: &str) -> Option<f64> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | '+' | '-');
    let starts = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !starts || !text.chars().all(plain) {
        return None;
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

fn hex_float(body: &str) -> Option<f64> {
    let (mantissa, exponent) = body.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > 13 {
        return None;
    }
    let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let shift = exponent.checked_sub(4 * i32::try_from(fraction.len()).ok()?)?;
    let value = digits as f64 * 2f64.powi(shift);
    value.is_finite().then_some(value)
}

/// Removes the quotes and escapes of a string, raw string or character literal.
pub(crate) fn unquote(literal: &str) -> Option<String> {
    let quote = literal.chars().next()?;
    let body = literal.get(1..literal.len().checked_sub(1)?)?;
    if quote == '`' {
        return Some(body.replace('\r', ""));
    }
    let mut bytes = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\\' {
            rest = escape(rest, quote, &mut bytes)?;
        } else if c == quote || c == '\n' {
            return None;
        } else {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Decodes the escape after a backslash and returns the rest.
fn escape<'a>(text: &'a str, quote: char, out: &mut Vec<u8>) -> Option<&'a str> {
    let c = text.chars().next()?;
    let numeric = |start: usize, len: usize, radix: u32| {
        let digits = text.get(start..start + len)?;
        if digits.starts_with('+') {
            return None;
        }
        u32::from_str_radix(digits, radix).ok()
    };
    let simple = match c {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' => b'\\',
        '\'' | '"' if c == quote => c as u8,
        'x' => {
            out.push(u8::try_from(numeric(1, 2, 16)?).ok()?);
            return text.get(3..);
        }
        '0'..='7' => {
            out.push(u8::try_from(numeric(0, 3, 8)?).ok()?);
            return text.get(3..);
        }
        'u' | 'U' => {
            let len = if c == 'u' { 4 } else { 8 };
            let c = char::from_u32(numeric(1, len, 16)?)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return text.get(1 + len..);
        }
        _ => return None,
    };
    out.push(simple);
    text.get(1..)
}
