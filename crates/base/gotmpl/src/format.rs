//! Go's `fmt`: the verbs of `printf`, and the default formats of values.

mod float;
mod verbs;

use std::fmt::Write;

use crate::value::Val;

pub(crate) use verbs::sprintf;

/// The flags between `%` and the verb, and `#` before `v`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    go_syntax: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// Formats a number like `%v`.
pub(crate) fn float(value: f64) -> String {
    float::format(value, 'v', Flags::default()).unwrap_or_default()
}

/// Formats a value like `%v`.
pub(crate) fn plain(value: &Val<'_>) -> String {
    let mut out = String::new();
    print(&mut out, value, 'v', Flags::default(), 0);
    out
}

/// Formats a value like `%s`.
pub(crate) fn text(value: &Val<'_>) -> String {
    let mut out = String::new();
    print(&mut out, value, 's', Flags::default(), 0);
    out
}

/// Formats values like Go's `fmt.Sprint`: a space separates two operands if neither is a string.
pub(crate) fn sprint(args: &[Val<'_>]) -> String {
    let mut out = String::new();
    let mut after_string = true;
    for arg in args {
        let is_string = matches!(arg, Val::Text(_));
        if !is_string && !after_string {
            out.push(' ');
        }
        print(&mut out, arg, 'v', Flags::default(), 0);
        after_string = is_string;
    }
    out
}

/// Formats values like Go's `fmt.Sprintln`.
pub(crate) fn sprintln(args: &[Val<'_>]) -> String {
    let words: Vec<String> = args.iter().map(plain).collect();
    words.join(" ") + "\n"
}

/// Quotes a string like Go's `strconv.Quote`.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| quote_char(&mut out, c, '"', false));
    out.push('"');
    out
}

fn quote_char(out: &mut String, c: char, quote: char, ascii: bool) {
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

fn pad(out: &mut String, text: &str, flags: Flags) {
    let missing = flags.width.unwrap_or(0).saturating_sub(text.chars().count());
    let fill = if flags.zero && !flags.minus { "0" } else { " " };
    if flags.minus {
        out.push_str(text);
        out.push_str(&fill.repeat(missing));
    } else {
        out.push_str(&fill.repeat(missing));
        out.push_str(text);
    }
}

/// Pads a number. The sign precedes padding zeros.
fn pad_number(out: &mut String, text: &str, flags: Flags) {
    let sign_len = text.len() - text.trim_start_matches(['+', '-', ' ']).len();
    if flags.zero && !flags.minus && sign_len > 0 {
        out.push_str(&text[..sign_len]);
        let width = flags.width.map(|width| width.saturating_sub(sign_len));
        pad(out, &text[sign_len..], Flags { width, ..flags });
    } else {
        pad(out, text, flags);
    }
}

fn bad_verb(out: &mut String, value: &Val<'_>, verb: char, flags: Flags) {
    let _ = write!(out, "%!{verb}(");
    if value.is_nothing() {
        out.push_str("<nil>");
    } else {
        let _ = write!(out, "{}=", value.type_name());
        print(out, value, 'v', flags, 0);
    }
    out.push(')');
}

/// Formats one value. `depth` distinguishes elements of lists and maps from operands.
fn print(out: &mut String, value: &Val<'_>, verb: char, flags: Flags, depth: usize) {
    let go_syntax = flags.go_syntax;
    if verb == 'T' {
        return string(out, value.type_name(), 's', flags);
    }
    match value {
        Val::Missing | Val::Nil if depth > 0 && go_syntax => out.push_str("interface {}(nil)"),
        Val::Missing | Val::Nil if depth > 0 => out.push_str("<nil>"),
        Val::Missing | Val::Nil if verb == 'v' => pad(out, "<nil>", flags),
        Val::Bool(value) if matches!(verb, 't' | 'v') => {
            pad(out, if *value { "true" } else { "false" }, flags);
        }
        Val::Int(value) => integer(out, *value, verb, flags),
        Val::Float(value) => match float::format(*value, verb, flags) {
            Some(text) => {
                let zero = flags.zero && value.is_finite();
                pad_number(out, &text, Flags { zero, ..flags });
            }
            None => bad_verb(out, &Val::Float(*value), verb, flags),
        },
        Val::Text(text) => string(out, text, verb, flags),
        // The verb formats errors, which templates do not have.
        _ if verb == 'w' => bad_verb(out, value, verb, flags),
        Val::List(items) => {
            if go_syntax {
                out.push_str(value.type_name());
            }
            out.push(if go_syntax { '{' } else { '[' });
            for (i, item) in items.iter().enumerate() {
                separate(out, i, go_syntax);
                print(out, &item.into(), verb, flags, depth + 1);
            }
            out.push(if go_syntax { '}' } else { ']' });
        }
        Val::Map(map) => {
            out.push_str(if go_syntax { value.type_name() } else { "map" });
            out.push(if go_syntax { '{' } else { '[' });
            for (i, (key, item)) in map.iter().enumerate() {
                separate(out, i, go_syntax);
                string(out, key, verb, flags);
                out.push(':');
                print(out, &item.into(), verb, flags, depth + 1);
            }
            out.push(if go_syntax { '}' } else { ']' });
        }
        _ => bad_verb(out, value, verb, flags),
    }
}

fn separate(out: &mut String, i: usize, go_syntax: bool) {
    if i > 0 {
        out.push_str(if go_syntax { ", " } else { " " });
    }
}

fn integer(out: &mut String, value: i64, verb: char, flags: Flags) {
    let magnitude = value.unsigned_abs();
    let (prefix, digits) = match verb {
        'v' | 'd' => ("", magnitude.to_string()),
        'b' => ("0b", format!("{magnitude:b}")),
        'o' | 'O' => ("0", format!("{magnitude:o}")),
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        'c' | 'q' | 'U' => return character(out, value, verb, flags),
        _ => return bad_verb(out, &Val::Int(value), verb, flags),
    };
    let prefix = match (verb, flags.sharp) {
        ('O', _) => "0o",
        (_, true) => prefix,
        (_, false) => "",
    };
    let sign = if value < 0 {
        "-"
    } else if flags.plus {
        "+"
    } else if flags.space {
        " "
    } else {
        ""
    };
    let precision = match flags.precision {
        // With precision zero, a zero prints no digits.
        Some(0) if value == 0 => return pad(out, "", Flags { zero: false, ..flags }),
        Some(precision) => precision,
        None => match flags.width {
            Some(width) if flags.zero && !flags.minus => width.saturating_sub(sign.len()),
            _ => 0,
        },
    };
    let zeros = "0".repeat(precision.saturating_sub(digits.len()));
    pad(out, &format!("{sign}{prefix}{zeros}{digits}"), Flags { zero: false, ..flags });
}

fn character(out: &mut String, value: i64, verb: char, flags: Flags) {
    let c = u32::try_from(value).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
    let text = match verb {
        'c' => c.to_string(),
        'q' => {
            let mut text = String::from("'");
            quote_char(&mut text, c, '\'', flags.plus);
            text + "'"
        }
        _ if flags.sharp && is_print(c) => format!("U+{value:04X} '{c}'"),
        _ => format!("U+{value:04X}"),
    };
    pad(out, &text, flags);
}

fn string(out: &mut String, text: &str, verb: char, flags: Flags) {
    let cut: String = match flags.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_owned(),
    };
    match verb {
        'v' if flags.go_syntax => pad(out, &quote(&cut), flags),
        'v' | 's' => pad(out, &cut, flags),
        'q' if flags.sharp && !cut.contains(['`', '\u{7f}']) && !has_control(&cut) => {
            pad(out, &format!("`{cut}`"), flags);
        }
        'q' => {
            let mut quoted = String::from("\"");
            cut.chars().for_each(|c| quote_char(&mut quoted, c, '"', flags.plus));
            pad(out, &(quoted + "\""), flags);
        }
        'x' | 'X' => {
            let bytes = text.as_bytes();
            let bytes = &bytes[..flags.precision.unwrap_or(bytes.len()).min(bytes.len())];
            pad(out, &hex(bytes, verb == 'X', flags), flags);
        }
        _ => bad_verb(out, &Val::text(text), verb, flags),
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\t')
}

fn hex(bytes: &[u8], upper: bool, flags: Flags) -> String {
    let prefix = match (flags.sharp, upper) {
        (false, _) => "",
        (true, false) => "0x",
        (true, true) => "0X",
    };
    let mut out = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        if flags.space && i > 0 {
            out.push(' ');
        }
        if i == 0 || flags.space {
            out.push_str(prefix);
        }
        let _ = if upper { write!(out, "{byte:02X}") } else { write!(out, "{byte:02x}") };
    }
    out
}
