//! Patterns of names for the plugin `rewrite`. Names are compared as text in lower case, with a final dot.

use hickory_proto::rr::Name;
use regex::Regex;

use crate::directive::{CorefileError, Directive, parse_name};

#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

/// A change of the names in an answer.
#[derive(Clone, Debug)]
pub(super) enum Replacement {
    /// A name, and the names below it, under another one.
    Domain { from: String, to: String },
    /// The end of names.
    Suffix { from: String, to: String },
    /// Names that match, by groups such as `{1}`.
    Regex { from: Regex, to: String },
}

/// Returns a name as it is compared, with a final dot if it is a whole one.
pub(super) fn normal(text: &str, is_whole: bool) -> String {
    let mut text = text.to_lowercase();
    if is_whole && !text.ends_with('.') {
        text.push('.');
    }
    text
}

impl Pattern {
    pub(super) fn parse(
        directive: &Directive,
        kind: &str,
        text: &str,
    ) -> Result<Self, CorefileError> {
        let pattern = match kind.to_lowercase().as_str() {
            "exact" => Self::Exact(normal(text, true)),
            "prefix" => Self::Prefix(normal(text, false)),
            "suffix" => Self::Suffix(normal(text, true)),
            "substring" => Self::Substring(normal(text, false)),
            "regex" => Self::Regex(directive.regex(text)?),
            _ => {
                let known = "exact, prefix, suffix, substring and regex";
                return directive
                    .fail(format!("{kind:?} is not a kind of match; there are {known}"));
            }
        };
        if text.is_empty() {
            return directive.fail("an empty pattern would match everywhere");
        }
        Ok(pattern)
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }

    /// Returns `true` if the replacement is the end of a name.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Exact(_) | Self::Suffix(_))
    }

    pub(super) fn is_match(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == text,
            Self::Prefix(text) => name.starts_with(text),
            Self::Suffix(text) => name.ends_with(text),
            Self::Substring(text) => name.contains(text),
            Self::Regex(regex) => regex.is_match(name),
        }
    }

    /// Returns the name with the matched part replaced; `None` without a match.
    pub(super) fn rewrite(&self, name: &str, to: &str) -> Option<String> {
        match self {
            Self::Exact(from) => (name == from).then(|| to.to_owned()),
            Self::Prefix(from) => Some(format!("{to}{}", name.strip_prefix(from)?)),
            Self::Suffix(from) => Some(format!("{}{to}", name.strip_suffix(from)?)),
            Self::Substring(from) => name.contains(from).then(|| name.replace(from, to)),
            Self::Regex(from) => fill(from, name, to),
        }
    }

    /// Returns the change back that is the same for all names, which only the suffix has.
    pub(super) fn revert(&self, to: &str) -> Option<Replacement> {
        match self {
            Self::Suffix(from) => {
                Some(Replacement::Suffix { from: to.to_owned(), to: from.clone() })
            }
            _ => None,
        }
    }
}

impl Replacement {
    /// Changes a name, unless the result would not be a name.
    pub(super) fn apply(&self, name: &mut Name) {
        let text = name.to_lowercase().to_ascii();
        let changed = match self {
            Self::Domain { from, to } if text == *from => Some(to.clone()),
            Self::Domain { from, to } => {
                let below = text.strip_suffix(from.as_str()).filter(|below| below.ends_with('.'));
                below.map(|below| format!("{below}{to}"))
            }
            Self::Suffix { from, to } => {
                text.strip_suffix(from.as_str()).map(|below| format!("{below}{to}"))
            }
            Self::Regex { from, to } => fill(from, &text, to),
        };
        if let Some(changed) = changed.and_then(|changed| parse_name(&changed).ok()) {
            *name = changed;
        }
    }
}

/// Fills the groups of a match into `{0}`, `{1}` and so on; `None` without a match. Groups are not filled into groups.
fn fill(from: &Regex, name: &str, to: &str) -> Option<String> {
    let captures = from.captures(name)?;
    let (mut filled, mut rest) = (String::new(), to);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let group = after.split_once('}').and_then(|(digits, after)| {
            let number: usize = digits.parse().ok().filter(|number| *number < captures.len())?;
            Some((captures.get(number).map_or("", |group| group.as_str()), after))
        });
        match group {
            Some((text, after)) => {
                filled.push_str(text);
                rest = after;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_names_as_coredns_documents() {
        let directive = Directive::default();
        for (kind, from, to, name, expected) in [
            ("exact", "example.net", "example.org.", "example.net.", Some("example.org.")),
            ("exact", "example.net", "example.org.", "a.example.net.", None),
            (
                "suffix",
                ".schmoogle.com.",
                ".google.com.",
                "a.schmoogle.com.",
                Some("a.google.com."),
            ),
            ("suffix", ".schmoogle.com", ".google.com.", "schmoogle.com.", None),
            ("prefix", "old-", "new-", "old-a.example.", Some("new-a.example.")),
            (
                "substring",
                "service.us-west-1.example.org",
                "service.us-west-1.consul",
                "ftp.service.us-west-1.example.org.",
                Some("ftp.service.us-west-1.consul."),
            ),
            (
                "regex",
                "(.*)-(us-west-1)\\.example\\.org",
                "{1}.service.{2}.consul",
                "ftp-us-west-1.example.org.",
                Some("ftp.service.us-west-1.consul"),
            ),
            ("regex", "(a)(b)?", "{1}{2}{3}{", "a.", Some("a{3}{")),
        ] {
            let pattern = Pattern::parse(&directive, kind, from).unwrap();
            assert_eq!(pattern.rewrite(name, to).as_deref(), expected, "{kind} {from}");
        }
        assert!(Pattern::parse(&directive, "frob", "a").is_err());
        assert!(Pattern::parse(&directive, "substring", "").is_err());
    }
}
