//! Parses files with environment variables: lines of `NAME='value'`, blank lines and comments.
//!
//! The text between the quotes is the value, without escapes, and may span several lines.

/// The size limit of a file in bytes.
pub const LIMIT: u64 = 64 << 10;

/// The error of an invalid file. The messages are upstream's. Lines count from 1.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvFileError {
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoEquals(usize),
    #[error("invalid environment variable format at line {0}: empty variable name")]
    NoName(usize),
    #[error(
        "invalid environment variable format at line {0}: whitespace before '=' is not allowed"
    )]
    Blank(usize),
    #[error(
        "invalid environment variable format at line {0}: value must be enclosed in single quotes"
    )]
    NotQuoted(usize),
    #[error(
        "invalid environment variable format at line {0}: unexpected text after the closing quote"
    )]
    After(usize),
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Open(usize),
}

/// Returns the value of a variable in a file. The last of several definitions wins. Any invalid line is an error.
pub fn value(text: &str, name: &str) -> Result<Option<String>, EnvFileError> {
    let mut last = None;
    let (mut rest, mut line) = (text, 1);
    while !rest.is_empty() {
        let (this, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = this.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            (rest, line) = (after, line + 1);
            continue;
        }
        let (own, raw) = rest.split_once('=').ok_or(EnvFileError::NoEquals(line))?;
        let own = own.trim_start();
        if own.contains('\n') {
            return Err(EnvFileError::NoEquals(line));
        }
        if own.is_empty() {
            return Err(EnvFileError::NoName(line));
        }
        if own.ends_with(char::is_whitespace) {
            return Err(EnvFileError::Blank(line));
        }
        let quoted = raw.strip_prefix('\'').ok_or(EnvFileError::NotQuoted(line))?;
        let (value, tail) = quoted.split_once('\'').ok_or(EnvFileError::Open(line))?;
        line += value.matches('\n').count();
        let (end, after) = tail.split_once('\n').unwrap_or((tail, ""));
        if !end.trim().is_empty() {
            return Err(EnvFileError::After(line));
        }
        if own == name {
            last = Some(value.to_owned());
        }
        (rest, line) = (after, line + 1);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_text_between_quotes_as_value() {
        let text =
            "# first\n\n  A='one'\nB='two\n# not a comment = three' \nC=''\nA='$(last) \\n \"'";
        for (name, expected) in [
            ("A", Some("$(last) \\n \"")),
            ("B", Some("two\n# not a comment = three")),
            ("C", Some("")),
            ("D", None),
        ] {
            assert_eq!(value(text, name).unwrap().as_deref(), expected, "{name}");
        }
        assert_eq!(value("", "A"), Ok(None));
    }

    #[test]
    fn rejects_invalid_lines_with_their_numbers() {
        for (text, expected) in [
            ("A='1'\nB", EnvFileError::NoEquals(2)),
            ("A\nB='1'", EnvFileError::NoEquals(1)),
            ("='1'", EnvFileError::NoName(1)),
            ("A ='1'", EnvFileError::Blank(1)),
            ("A=1", EnvFileError::NotQuoted(1)),
            ("A= '1'", EnvFileError::NotQuoted(1)),
            ("A='1\n2'\nB=\"1\"", EnvFileError::NotQuoted(3)),
            ("A='1' # no", EnvFileError::After(1)),
            ("\nA='1\n", EnvFileError::Open(2)),
        ] {
            assert_eq!(value(text, "A"), Err(expected), "{text:?}");
        }
    }
}
