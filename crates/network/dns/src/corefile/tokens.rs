//! Splits a Corefile into directives.

use super::error::CorefileError;

/// A line of a block: its words, and the lines in its braces.
#[derive(Clone, Debug, Default)]
pub(super) struct Directive {
    pub(super) line: usize,
    pub(super) words: Vec<String>,
    pub(super) body: Vec<Directive>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(super) fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }
}

/// Returns an error about a directive.
pub(super) fn fail<T>(
    directive: &Directive,
    reason: impl Into<String>,
) -> Result<T, CorefileError> {
    Err(CorefileError {
        line: directive.line,
        reason: format!("{}: {}", directive.name(), reason.into()),
    })
}

/// Splits a Corefile into server blocks: directives whose words are the labels.
pub(super) fn blocks(text: &str) -> Result<Vec<Directive>, CorefileError> {
    let mut open: Vec<Directive> = vec![Directive::default()];
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let error = |reason: &str| CorefileError { line: line_number, reason: reason.to_owned() };
        let mut words = words(line).ok_or_else(|| error("a quotation mark is not closed"))?;
        let closes = words.first().is_some_and(|word| word == "}");
        if closes && words.len() == 1 {
            let Some(closed) = open.pop().filter(|_| !open.is_empty()) else {
                return Err(error("this brace closes a block that no line opens"));
            };
            if let Some(parent) = open.last_mut() {
                parent.body.push(closed);
            }
            continue;
        }
        let opens = words.last().is_some_and(|word| word == "{");
        if opens {
            words.pop();
            open.push(Directive { line: line_number, words, body: Vec::new() });
        } else if !words.is_empty() {
            let directive = Directive { line: line_number, words, body: Vec::new() };
            if let Some(parent) = open.last_mut() {
                parent.body.push(directive);
            }
        }
    }
    match open.len() {
        1 => Ok(open.pop().unwrap_or_default().body),
        _ => {
            let line = open.last().map_or(1, |directive| directive.line);
            Err(CorefileError { line, reason: "this brace is never closed".to_owned() })
        }
    }
}

/// Splits a line into words. Quotes keep spaces, and a word that starts with # starts a comment.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    Some(words)
}
