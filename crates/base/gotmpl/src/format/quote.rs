//! Quotes strings and characters like Go.

use std::fmt::Write;

/// Quotes a string like Go's `strconv.Quote`.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| quote_char(&mut out, c, '"', false));
    out.push('"');
    out
}

pub(super) fn quote_char(out: &mut String, c: char, quote: char, ascii: bool) {
    let escape = match c {
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{b}' => 'v',
        '\\' => '\\',
        c if c == quote => c,
        c if is_print(c) && (c.is_ascii() || !ascii) => return out.push(c),
        c => {
            // Writing to a String cannot fail.
            let _ = match u32::from(c) {
                code if code < 0x20 || code == 0x7f => write!(out, "\\x{code:02x}"),
                code if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            };
            return;
        }
    };
    out.extend(['\\', escape]);
}

/// Returns `true` for a printable character, like Go's `unicode.IsPrint`.
pub(crate) fn is_print(c: char) -> bool {
    // Rust escapes combining marks only at the start of a string, so test the character behind a letter.
    let mut pair = String::from("a");
    pair.push(c);
    matches!(c, '"' | '\'' | '\\') || pair.escape_debug().count() == 2
}
