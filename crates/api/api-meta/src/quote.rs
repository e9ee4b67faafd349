use std::fmt::Write;

/// Returns Go's escape of a character that a quoted string cannot contain and that has a short escape.
pub fn go_escape(c: char) -> Option<&'static str> {
    Some(match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{b}' => "\\v",
        _ => return None,
    })
}

/// Quotes a string like Go's `%q`, which upstream's messages use for names.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match (go_escape(c), u32::from(c)) {
            (Some(escape), _) => out.push_str(escape),
            // Writing to a String cannot fail.
            (None, code) if c.is_ascii_control() => drop(write!(out, "\\x{code:02x}")),
            (None, code) if c.is_control() => drop(write!(out, "\\u{code:04x}")),
            (None, _) => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
