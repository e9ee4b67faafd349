use std::{fmt, str::FromStr};

/// A field selector such as `metadata.name=x,status.phase!=Failed`. All terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    /// The conditions.
    pub terms: Vec<FieldTerm>,
}

/// A condition on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldTerm {
    /// The path of the field, such as `metadata.name`.
    pub field: String,
    /// `true` if the field must have the value, `false` if it must not.
    pub equal: bool,
    /// The value, unescaped.
    pub value: String,
}

/// The error for an invalid field selector, with upstream's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

impl FieldSelector {
    /// Returns a selector without conditions.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns `true` if the selector has no conditions and so selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Reports whether an object matches. `field` returns the value of a field; an absent field counts as the empty
    /// string.
    pub fn matches<'a>(&self, mut field: impl FnMut(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|term| (field(&term.field).unwrap_or("") == term.value) == term.equal)
    }

    /// Returns the value that the selector requires for a field. It turns a list into a get.
    pub(crate) fn requires_exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }
}

impl FromStr for FieldSelector {
    type Err = FieldSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut terms = Vec::new();
        for term in split_terms(text).into_iter().filter(|t| !t.is_empty()) {
            let Some((field, equal, value)) = split_term(term) else {
                return Err(FieldSelectorError::Term { selector: text.into(), term: term.into() });
            };
            terms.push(FieldTerm { field: field.into(), equal, value: unescape(value)? });
        }
        Ok(Self { terms })
    }
}

/// Splits at commas that are not escaped by a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().map(|(i, _)| i).find(|i| {
        let rest = &term[*i..];
        rest.starts_with("!=") || rest.starts_with('=')
    })?;
    let (field, rest) = term.split_at(at);
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(value) = rest.strip_prefix(operator) {
            return Some((field, equal, value));
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(FieldSelectorError::Escape(format!("\\{c}"))),
                None => return Err(FieldSelectorError::Escape("\\".into())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{}{}", term.field, if term.equal { "=" } else { "!=" })?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_matches_and_prints() {
        let selector: FieldSelector = r"metadata.name==x\,y,status.phase!=Failed,".parse().unwrap();
        assert_eq!(selector.to_string(), r"metadata.name=x\,y,status.phase!=Failed");
        assert_eq!(selector.requires_exact("metadata.name"), Some("x,y"));
        let phase =
            |phase| move |field: &str| if field == "metadata.name" { Some("x,y") } else { phase };
        assert!(selector.matches(phase(None)));
        assert!(selector.matches(phase(Some("Running"))));
        assert!(!selector.matches(phase(Some("Failed"))));
        assert!("".parse::<FieldSelector>().unwrap().is_empty());
    }

    #[test]
    fn rejects_invalid_selectors() {
        assert_eq!(
            "x".parse::<FieldSelector>().unwrap_err().to_string(),
            "invalid selector: 'x'; can't understand 'x'"
        );
        for bad in [r"a=b\c", r"a=\", "a=b=c"] {
            assert!(bad.parse::<FieldSelector>().is_err(), "{bad}");
        }
    }
}
