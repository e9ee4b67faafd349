//! Translates Go's regular expressions to Rust's dialect. Both descend from RE2 and differ in details.
//!
//! In Go, `\d \w \s \b` are ASCII, `\Q…\E` quotes, `\123` is octal, brackets in a class need no escape, and a class has
//! no set operations.

use regex::{Regex, RegexBuilder};

/// The error for a pattern that Go rejects, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {problem}: `{pattern}`")]
pub struct PatternError {
    problem: String,
    pattern: String,
}

/// Compiles a Go pattern.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let failed =
        |problem: &str| PatternError { problem: problem.to_owned(), pattern: pattern.to_owned() };
    let translated = translate(pattern).map_err(failed)?;
    RegexBuilder::new(&translated).size_limit(1 << 20).build().map_err(|e| match e {
        regex::Error::CompiledTooBig(_) => failed("expression too large"),
        // The last line is the message; the lines before it draw the pattern.
        other => {
            let text = other.to_string();
            failed(text.lines().next_back().unwrap_or_default().trim_start_matches("error: "))
        }
    })
}

/// Translates a pattern, or returns the problem with it.
fn translate(pattern: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars().peekable();
    let mut class = false;
    let mut repeated = Repetition::No;
    while let Some(c) = chars.next() {
        let literal_brace = c == '{' && !is_repetition(&chars);
        // After a parenthesis, `?` starts flags.
        let flags = c == '?' && out.ends_with('(') && !out.ends_with("\\(");
        repeated = repeated
            .then(if class || literal_brace || flags { 'a' } else { c })
            .ok_or("invalid nested repetition operator")?;
        match c {
            '\\' => escape(&mut chars, class, &mut out)
                .ok_or("trailing backslash at end of expression")?,
            '[' if class => {
                // `[:alpha:]` is a class in both dialects; any other bracket is literal.
                out.push_str(if chars.peek() == Some(&':') { "[" } else { "\\[" });
                if chars.peek() == Some(&':') {
                    for c in chars.by_ref() {
                        out.push(c);
                        if c == ']' {
                            break;
                        }
                    }
                }
            }
            '[' => {
                class = true;
                out.push(c);
                if chars.peek() == Some(&'^') {
                    out.extend(chars.next());
                }
                if chars.peek() == Some(&']') {
                    chars.next();
                    out.push_str("\\]");
                }
            }
            ']' if class => {
                class = false;
                out.push(c);
            }
            '&' | '~' if class => {
                out.push('\\');
                out.push(c);
            }
            '-' if class && chars.peek() == Some(&'-') => out.push_str("\\-"),
            '{' if !class => repetition(&mut chars, &mut out).ok_or("invalid repeat count")?,
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// The repetition before the current position. Go rejects a repetition of a repetition; Rust allows it.
#[derive(Clone, Copy)]
enum Repetition {
    No,
    Yes,
    /// A repetition followed by the `?` that makes it lazy.
    Lazily,
}

impl Repetition {
    fn then(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::No, '*' | '+' | '?' | '{') => Some(Self::Yes),
            (Self::Yes, '?') => Some(Self::Lazily),
            (Self::Yes | Self::Lazily, '*' | '+' | '?' | '{') => None,
            // The rest of `{1,2}` is copied at once and does not pass through here.
            _ => Some(Self::No),
        }
    }
}

/// Returns `true` if the brace that was just read starts a count, `{1,2}`.
fn is_repetition(chars: &Chars<'_>) -> bool {
    let mut out = String::new();
    repetition(&mut chars.clone(), &mut out).is_none() || out.starts_with('{')
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn escape(chars: &mut Chars<'_>, class: bool, out: &mut String) -> Option<()> {
    const DIGIT: &str = "0-9";
    const WORD: &str = "0-9A-Za-z_";
    const SPACE: &str = "\\t\\n\\x0C\\r ";
    let (set, negated) = match chars.next()? {
        'd' => (DIGIT, false),
        'w' => (WORD, false),
        's' => (SPACE, false),
        'D' => (DIGIT, true),
        'W' => (WORD, true),
        'S' => (SPACE, true),
        'b' if !class => {
            out.push_str("(?-u:\\b)");
            return Some(());
        }
        'B' if !class => {
            out.push_str("(?-u:\\B)");
            return Some(());
        }
        'Q' => {
            copy_quote(chars, out);
            return Some(());
        }
        first @ '0'..='7' => {
            octal(first, chars, out);
            return Some(());
        }
        other => {
            out.push('\\');
            out.push(other);
            return Some(());
        }
    };
    match (class, negated) {
        (true, false) => out.push_str(set),
        // Rust nests classes, so this is also valid within a class.
        (_, true) => out.push_str(&format!("[^{set}]")),
        (false, false) => out.push_str(&format!("[{set}]")),
    }
    Some(())
}

/// Copies a `\Q` quote up to `\E` or the end.
fn copy_quote(chars: &mut Chars<'_>, out: &mut String) {
    let mut text = String::new();
    for c in chars.by_ref() {
        text.push(c);
        if text.ends_with("\\E") {
            text.truncate(text.len() - 2);
            break;
        }
    }
    out.push_str(&regex::escape(&text));
}

fn octal(first: char, chars: &mut Chars<'_>, out: &mut String) {
    let mut code = first.to_digit(8).unwrap_or(0);
    for _ in 0..2 {
        match chars.peek().and_then(|c| c.to_digit(8)) {
            Some(digit) => {
                code = code * 8 + digit;
                chars.next();
            }
            None => break,
        }
    }
    out.push_str(&format!("\\x{{{code:x}}}"));
}

/// Copies a repetition. Go allows counts up to 1000. A brace that starts no repetition is literal.
fn repetition(chars: &mut Chars<'_>, out: &mut String) -> Option<()> {
    let mut ahead = chars.clone();
    let mut body = String::new();
    let closed = loop {
        match ahead.next() {
            Some('}') => break true,
            Some(c) if c.is_ascii_digit() || c == ',' => body.push(c),
            _ => break false,
        }
    };
    let counts: Vec<&str> = body.split(',').collect();
    if !closed || counts.len() > 2 || counts[0].is_empty() {
        out.push_str("\\{");
        return Some(());
    }
    let too_many =
        |count: &&str| !count.is_empty() && !count.parse::<u32>().is_ok_and(|n| n <= 1000);
    if counts.iter().any(too_many) {
        return None;
    }
    *chars = ahead;
    out.push('{');
    out.push_str(&body);
    out.push('}');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_like_go() {
        for (pattern, yes, no) in [
            (r"^\d+$", "42", "٤٢"),
            (r"^\w+$", "a_1", "é"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^[^\s]+$", "ab", "a b"),
            (r"^[\D]+$", "ab", "1"),
            (r"^[\Wa]+$", "-a", "b"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            (r"^\101$", "A", "B"),
            (r"^[[a]+$", "[a", "b"),
            (r"^[a&&b]+$", "&ab", "c"),
            (r"^[]a]+$", "]a", "b"),
            (r"^[[:alpha:]]+$", "ab", "1"),
            (r"^a{2,3}$", "aaa", "a"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^a{$", "a{", "a"),
            (r"^[a-z--]+$", "a-", "1"),
            (r"(?i)^abc$", "ABC", "x"),
        ] {
            let regex = compile(pattern).unwrap();
            assert!(regex.is_match(yes), "{pattern} should match {yes}");
            assert!(!regex.is_match(no), "{pattern} should not match {no}");
        }
        for bad in ["(", "a{1001}", "[", "(?=a)", "\\", "*"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }
}
