//! Chooses the style of a scalar, so that a YAML 1.1 parser reads the same text.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

impl Style {
    pub(super) fn of(text: &str, key: bool) -> Self {
        let shape = Shape::of(text);
        let lines = text.contains('\n');
        if lines && !key {
            // A literal block cannot contain trailing spaces or unprintable characters.
            return if shape.block { Self::Literal } else { Self::Double };
        }
        if is_another_type(text) {
            return Self::Double;
        }
        match (shape.plain && !lines, shape.single && !lines) {
            (true, _) => Self::Plain,
            (_, true) => Self::Single,
            _ => Self::Double,
        }
    }
}

/// The possible styles of a text.
struct Shape {
    plain: bool,
    single: bool,
    block: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut space_break, mut break_space) = (false, false, false);
        let mut previous = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let blank_next =
                chars.peek().is_none_or(|next| matches!(next, ' ' | '\t' | '\n' | '\r'));
            let blank_before = previous.is_none_or(|p| matches!(p, ' ' | '\t' | '\n' | '\r'));
            indicators |= match c {
                '#' if previous.is_none() => true,
                '#' => blank_before,
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
                | '@' | '`' => previous.is_none(),
                '-' | '?' => previous.is_none() && blank_next,
                ':' => blank_next,
                _ => false,
            };
            special |= !is_printable(c);
            space_break |= c == '\n' && previous == Some(' ');
            break_space |= c == ' ' && previous == Some('\n');
            previous = Some(c);
        }
        let edge = |c: Option<char>| matches!(c, Some(' ' | '\n'));
        let edges = edge(text.chars().next()) || edge(text.chars().next_back());
        let odd = space_break || special;
        Self {
            plain: !(indicators || edges || odd || break_space),
            single: !(odd || break_space),
            block: !(odd || text.ends_with(' ')),
        }
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && c != '\u{feff}'
        || c == '\u{85}'
}

pub(super) fn escaped(c: char) -> String {
    match c {
        '\0' => "\\0".into(),
        '\x07' => "\\a".into(),
        '\x08' => "\\b".into(),
        '\t' => "\\t".into(),
        '\n' => "\\n".into(),
        '\x0b' => "\\v".into(),
        '\x0c' => "\\f".into(),
        '\r' => "\\r".into(),
        '\x1b' => "\\e".into(),
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\u{85}' => "\\N".into(),
        '\u{a0}' => "\\_".into(),
        '\u{2028}' => "\\L".into(),
        '\u{2029}' => "\\P".into(),
        c if is_printable(c) => c.to_string(),
        c if (c as u32) < 0x100 => format!("\\x{:02X}", c as u32),
        c if (c as u32) < 0x10000 => format!("\\u{:04X}", c as u32),
        c => format!("\\U{:08X}", c as u32),
    }
}

/// Reports whether a YAML 1.1 parser reads a plain text as another type than a string.
fn is_another_type(text: &str) -> bool {
    const WORDS: [&str; 11] =
        ["y", "yes", "n", "no", "true", "false", "on", "off", "null", "~", ""];
    let lower = text.to_ascii_lowercase();
    let cased = text == lower
        || text == text.to_ascii_uppercase()
        || text
            .strip_prefix(|c: char| c.is_ascii_uppercase())
            .is_some_and(|rest| lower.ends_with(rest));
    if cased && WORDS.contains(&lower.as_str()) {
        return true;
    }
    let unsigned = lower.trim_start_matches(['+', '-']);
    if text == "<<" || matches!(unsigned, ".inf" | ".nan") {
        return true;
    }
    is_number(text) || is_base_60(text) || is_time(text)
}

fn is_number(text: &str) -> bool {
    let plain = text.replace('_', "");
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    let all = |text: &str, radix| !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return false;
    }
    let based = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8)];
    let prefixed = based
        .iter()
        .any(|(prefix, radix)| digits.strip_prefix(prefix).is_some_and(|rest| all(rest, *radix)));
    prefixed || is_float(digits)
}

/// Reports whether a text is digits with at most one point, and optionally an exponent.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let exponent = exponent.map(|e| e.strip_prefix(['+', '-']).unwrap_or(e));
    digits(whole)
        && digits(part)
        && !(whole.is_empty() && part.is_empty())
        && exponent.is_none_or(|e| !e.is_empty() && digits(e))
}

/// Reports whether a text is a base-60 number such as `1:30:00`, which YAML 1.1 parsers read as a number.
fn is_base_60(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    let starts = first.starts_with(|c: char| c.is_ascii_digit())
        && first.chars().all(|c| c.is_ascii_digit() || c == '_');
    let mut rest = parts.peekable();
    if !starts || rest.peek().is_none() {
        return false;
    }
    rest.all(|part| {
        let whole = part.split_once('.').map_or(part, |(whole, _)| whole);
        matches!(whole.len(), 1 | 2)
            && whole.chars().all(|c| c.is_ascii_digit())
            && whole.parse::<u8>().is_ok_and(|n| n < 60)
    })
}

/// Reports whether a text is a date such as `2006-1-2`, optionally with a time.
fn is_time(text: &str) -> bool {
    let (date, clock) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let number = |text: &str, most: usize| {
        !text.is_empty() && text.len() <= most && text.chars().all(|c| c.is_ascii_digit())
    };
    let date: Vec<_> = date.split('-').collect();
    let is_date = matches!(date[..], [y, m, d] if y.len() == 4 && number(y, 4) && number(m, 2) && number(d, 2));
    is_date
        && clock.is_none_or(|clock| {
            clock.split(':').count() >= 3 && clock.starts_with(|c: char| c.is_ascii_digit())
        })
}
