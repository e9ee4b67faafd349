//! Percent-encoding, which URLs and names of headers have.

/// The bytes that the text stands for; where a `%` is not followed by two hexadecimal digits, its position.
///
/// Who reads a name of this must not guess what a broken escape may mean, because whoever reads it next guesses
/// otherwise: Go refuses such a path, leaves such a pair of a query out, and takes such a header's name as it is.
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

/// Text of a URL that stands for the bytes: letters and digits, and those of `plain`, as they are, all else escaped.
pub fn percent_encode(bytes: impl AsRef<[u8]>, plain: &[u8]) -> String {
    let bytes = bytes.as_ref().iter();
    let shown = |byte: &u8| match byte.is_ascii_alphanumeric() || plain.contains(byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    bytes.map(shown).collect()
}

/// A name or value of a query, in which `+` is a space; `None` if an escape is broken.
pub fn query_decode(text: &str) -> Option<String> {
    let bytes = percent_decode(&text.replace('+', " ")).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_two_digits_and_nothing_else() {
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
