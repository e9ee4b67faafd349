//! Percent-encoding in URLs and header names.

/// Decodes percent escapes. Returns the position of the first `%` that two hexadecimal digits do not follow.
///
/// Callers must not guess the meaning of a broken escape, because the next reader may guess differently. Go rejects
/// such a path, drops such a query pair, and uses such a header name unchanged.
pub fn percent_decode(text: &str) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?.1).to_digit(16);
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return Err(at),
        }
    }
    Ok(out)
}

/// Encodes bytes for a URL: letters, digits and the bytes in `plain` stay, all others are escaped.
pub fn percent_encode(bytes: impl AsRef<[u8]>, plain: &[u8]) -> String {
    let bytes = bytes.as_ref().iter();
    let encode = |byte: &u8| {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            char::from(*byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    bytes.map(encode).collect()
}

/// Decodes a name or value of a query, where `+` is a space. Returns `None` if an escape is broken.
pub fn query_decode(text: &str) -> Option<String> {
    let bytes = percent_decode(&text.replace('+', " ")).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_escapes_of_two_hex_digits_only() {
        for (text, bytes) in [
            ("", Ok(&b""[..])),
            ("a-b", Ok(b"a-b")),
            ("%41%2f%2F", Ok(b"A//")),
            ("%ff", Ok(b"\xff")),
            ("é%00", Ok("é\0".as_bytes())),
            ("a%", Err(1)),
            ("ab%4", Err(2)),
            ("%4g", Err(0)),
            ("%+f", Err(0)),
            ("% 1", Err(0)),
            ("%4é", Err(0)),
        ] {
            assert_eq!(percent_decode(text), bytes.map(<[u8]>::to_vec), "{text}");
        }
        assert_eq!(query_decode("a+b%2Bc").as_deref(), Some("a b+c"));
        assert_eq!(query_decode("%ff").as_deref(), Some("\u{fffd}"));
        assert_eq!(query_decode("a%"), None);
    }
}
