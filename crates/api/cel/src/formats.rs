//! Named formats, such as `format.dns1123Label()`, with the messages of Kubernetes' validation.

use api_meta::validation;
use base64::Engine as _;

use crate::{error::EvalError, time, url::Url};

/// A named format of strings. It is a function, but costs as much as a regular expression.
pub struct Format {
    /// The name for `format.named`.
    pub(crate) name: &'static str,
    /// The length of the regular expression, which determines the cost.
    pub(crate) regex_size: u64,
    check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Format {
    pub(crate) fn errors(&self, text: &str) -> Vec<String> {
        (self.check)(text)
    }
}

const fn of(name: &'static str, regex_size: u64, check: fn(&str) -> Vec<String>) -> Format {
    Format { name, regex_size, check }
}

static FORMATS: [Format; 13] = [
    of("dns1123Label", 30, validation::dns1123_label),
    of("dns1123Subdomain", 60, validation::dns1123_subdomain),
    of("dns1035Label", 30, validation::dns1035_label),
    of("qualifiedName", 60, validation::qualified_name),
    of("dns1123LabelPrefix", 30, |t| validation::dns1123_label(&prefix(t))),
    of("dns1123SubdomainPrefix", 60, |t| validation::dns1123_subdomain(&prefix(t))),
    of("dns1035LabelPrefix", 30, |t| validation::dns1035_label(&prefix(t))),
    of("labelValue", 40, validation::label_value),
    of("uri", 1103, |t| Url::parse(t).err().iter().map(EvalError::to_string).collect()),
    of("uuid", 70, |t| unless(is_uuid(t), "does not match the UUID format")),
    of("byte", 84, |t| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(t);
        unless(decoded.is_ok(), "invalid base64")
    }),
    of("date", 71, |t| {
        unless(time::parse_timestamp(&format!("{t}T00:00:00Z")).is_some(), "invalid date")
    }),
    of("datetime", 71, |t| unless(time::parse_timestamp(t).is_some(), "invalid datetime")),
];

pub(crate) fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// A `generateName` prefix may end with a dash.
fn prefix(text: &str) -> String {
    validation::mask_trailing_dash(text)
}

fn unless(fits: bool, message: &str) -> Vec<String> {
    if fits { Vec::new() } else { vec![message.to_owned()] }
}

/// Accepts UUIDs with or without dashes, in either case.
fn is_uuid(text: &str) -> bool {
    let dashes: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    digits == 32
        && digits + dashes.len() == text.len()
        && (dashes.is_empty() || dashes == [8, 13, 18, 23])
}
