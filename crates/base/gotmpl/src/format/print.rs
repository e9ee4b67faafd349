//! Formats values by a verb and its flags.

use std::fmt::Write;

use super::{
    flags::{Flags, pad, pad_number},
    float,
    quote::{is_print, quote, quote_char},
};
use crate::value::Val;

/// Formats a value whose verb does not support it.
pub(super) fn bad_verb(out: &mut String, value: &Val<'_>, verb: char, flags: Flags) {
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
pub(super) fn print(out: &mut String, value: &Val<'_>, verb: char, flags: Flags, depth: usize) {
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
