//! Validates names, label keys and label values, with upstream's messages.
//!
//! Each check returns messages; an empty list means valid.

use std::collections::BTreeMap;

use crate::field::{ErrorList, FieldError, Path};

/// The longest DNS label (RFC 1123), in bytes.
pub(crate) const DNS1123_LABEL_MAX: usize = 63;
/// The longest DNS name, in bytes.
pub(crate) const DNS1123_SUBDOMAIN_MAX: usize = 253;
/// The longest name part of a label's key, in bytes.
pub(crate) const QUALIFIED_NAME_MAX: usize = 63;
/// The longest label's value, in bytes.
pub(crate) const LABEL_VALUE_MAX: usize = 63;
/// The maximum size of all annotations of an object, in bytes.
pub(crate) const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
    must start and end with an alphanumeric character";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
    or '.', and must start and end with an alphanumeric character";
const DNS1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character";
const QUALIFIED_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character";
const WILDCARD_RULE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, \
    which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const CONFIG_KEY_RULE: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
const HEADER_RULE: &str = "a valid HTTP header must consist of alphanumeric characters or '-'";

const LABEL_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_REGEX: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_REGEX: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const VALUE_REGEX: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

/// Returns the message for a text that does not match, with examples and upstream's (odd) punctuation.
fn mismatch(rule: &str, regex: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{regex}')");
    }
    let list: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", list.join(" or "))
}

/// Returns upstream's words for a long name.
fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Returns upstream's words for a long part of a label.
fn too_long_for_label(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Returns `true` if all bytes are in `inner`, and the first and last also in `edge`.
fn is_framed(text: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => edge(*first) && edge(*last) && bytes.iter().all(|b| inner(*b)),
        _ => false,
    }
}

/// Parses an address like upstream with `StrictIPCIDRValidation`, or returns upstream's message. Ambiguous notations
/// are rejected: leading zeros, which some parsers take for octal numbers (CVE-2021-29923), and IPv4-mapped IPv6
/// addresses.
pub fn ip(text: &str) -> Result<std::net::IpAddr, &'static str> {
    match text.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.to_canonical() != ip => Err("must not be an IPv4-mapped IPv6 address"),
        Ok(ip) => Ok(ip),
        Err(_) if has_leading_zeros(text) => Err("must not have leading 0s"),
        Err(_) => Err("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
    }
}

/// Reports whether the text is an IPv4 address except for leading zeros in its numbers.
fn has_leading_zeros(text: &str) -> bool {
    let octet = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let number = part.trim_start_matches('0');
        digits && (number.is_empty() || number.parse::<u8>().is_ok())
    };
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4 && parts.iter().all(|part| octet(part))
}

fn is_lower_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_alphanumeric(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

fn is_label(text: &str) -> bool {
    is_framed(text, is_lower_alphanumeric, |b| is_lower_alphanumeric(b) || b == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified_name(text: &str) -> bool {
    is_framed(text, is_alphanumeric, |b| is_alphanumeric(b) || matches!(b, b'-' | b'_' | b'.'))
}

fn check(text: &str, max: usize, shaped: bool, message: impl FnOnce() -> String) -> Vec<String> {
    let long = (text.len() > max).then(|| too_long(max));
    long.into_iter().chain((!shaped).then(message)).collect()
}

/// Validates a name without dots, such as a namespace's.
pub fn dns1123_label(text: &str) -> Vec<String> {
    check(text, DNS1123_LABEL_MAX, is_label(text), || {
        if is_subdomain(text) {
            "must not contain dots".into()
        } else {
            mismatch(LABEL_RULE, LABEL_REGEX, &["my-name", "123-abc"])
        }
    })
}

/// Validates a name with dots, such as most objects'.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    check(text, DNS1123_SUBDOMAIN_MAX, is_subdomain(text), subdomain_rule)
}

fn subdomain_rule() -> String {
    mismatch(SUBDOMAIN_RULE, SUBDOMAIN_REGEX, &["example.com"])
}

/// Validates a name like [`dns1123_subdomain`] whose labels may contain underscores, except at their end.
pub fn dns1123_subdomain_with_underscore(text: &str) -> Vec<String> {
    let is_label = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label);
        is_framed(rest, is_lower_alphanumeric, |b| {
            is_lower_alphanumeric(b) || matches!(b, b'-' | b'_')
        })
    };
    let shaped = text.split('.').all(is_label);
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
        and must start and end with an alphanumeric character";
    let regex = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
    check(text, DNS1123_SUBDOMAIN_MAX, shaped, || mismatch(rule, regex, &["example.com"]))
}

/// Validates a name that begins with a letter (RFC 1035), such as a Service's in older releases.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let shaped = is_label(text) && text.as_bytes()[0].is_ascii_lowercase();
    check(text, DNS1123_LABEL_MAX, shaped, || {
        mismatch(DNS1035_RULE, DNS1035_REGEX, &["my-name", "abc-123"])
    })
}

/// Validates a name with dots whose first label is `*`, such as an Ingress host.
pub fn wildcard_dns1123_subdomain(text: &str) -> Vec<String> {
    let shaped = text.strip_prefix("*.").is_some_and(is_subdomain);
    check(text, DNS1123_SUBDOMAIN_MAX, shaped, || {
        mismatch(WILDCARD_RULE, &format!(r"\*\.{SUBDOMAIN_REGEX}"), &["*.example.com"])
    })
}

/// Validates a label key, taint key or lower-cased annotation key: `[prefix/]name`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            let rule = format!("a valid label key {QUALIFIED_RULE}");
            let message = mismatch(&rule, QUALIFIED_REGEX, &["MyName", "my.name", "123-abc"]);
            return vec![format!(
                "{message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".into());
            name
        }
        Some((prefix, name)) => {
            let long = (prefix.len() > DNS1123_SUBDOMAIN_MAX)
                .then(|| too_long_for_label(DNS1123_SUBDOMAIN_MAX));
            let found = long.into_iter().chain((!is_subdomain(prefix)).then(subdomain_rule));
            errors.extend(found.map(|message| format!("prefix part {message}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > QUALIFIED_NAME_MAX {
        errors.push(format!("name part {}", too_long_for_label(QUALIFIED_NAME_MAX)));
    }
    if !is_qualified_name(name) {
        let message = mismatch(QUALIFIED_RULE, QUALIFIED_REGEX, &["MyName", "my.name", "123-abc"]);
        errors.push(format!("name part {message}"));
    }
    errors
}

/// Validates a label value, which may be empty.
pub fn label_value(text: &str) -> Vec<String> {
    let long = (text.len() > LABEL_VALUE_MAX).then(|| too_long_for_label(LABEL_VALUE_MAX));
    let misshapen = (!text.is_empty() && !is_qualified_name(text))
        .then(|| mismatch(VALUE_RULE, VALUE_REGEX, &["MyValue", "my_value", "12345"]));
    long.into_iter().chain(misshapen).collect()
}

/// Validates a container's environment variable name: printable ASCII without `=`, since v1.34.
pub fn env_var_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["a valid environment variable name must not be empty".into()];
    }
    if text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec![mismatch(
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
        "[ -<>-~]+",
        &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
    )]
}

/// Validates a key of a ConfigMap or Secret, which is a file name in volumes.
pub fn config_map_key(text: &str) -> Vec<String> {
    let shaped = !text.is_empty()
        && text.bytes().all(|b| is_alphanumeric(b) || matches!(b, b'-' | b'_' | b'.'));
    let mut errors = check(text, DNS1123_SUBDOMAIN_MAX, shaped, || {
        mismatch(CONFIG_KEY_RULE, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"])
    });
    match text {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        text if text.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => {}
    }
    errors
}

/// Validates an HTTP header name, such as a probe's.
pub fn http_header_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| is_alphanumeric(b) || b == b'-') {
        return Vec::new();
    }
    vec![mismatch(HEADER_RULE, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// Validates a port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".into()]
    }
}

/// Validates a port name, which is an IANA service name.
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push(too_long(15));
    }
    if text.is_empty() || !text.bytes().all(|b| is_lower_alphanumeric(b) || b == b'-') {
        errors
            .push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// Validates a name that is one segment of a URL path: the loosest rule for object names.
pub fn path_segment_name(text: &str) -> Vec<String> {
    match text {
        "." => return vec!["may not be '.'".into()],
        ".." => return vec!["may not be '..'".into()],
        _ => {}
    }
    ['/', '%']
        .iter()
        .filter(|c| text.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// Validates a domain with a path, such as `example.com/signer`.
pub fn domain_prefixed_path(text: &str) -> Vec<String> {
    match text.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => dns1123_subdomain(domain),
        _ => vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".into()],
    }
}

/// Validates a domain-prefixed key, such as `example.com/name`, in lower case.
pub fn domain_prefixed_key(text: &str) -> Vec<String> {
    let errors = qualified_name(text);
    if errors.is_empty() && !text.contains('/') {
        return vec!["must be a domain-prefixed key (such as \"acme.io/foo\")".into()];
    }
    errors
}

/// Validates the reason of a condition.
pub fn condition_reason(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_valid = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(is_word)
        && text.chars().all(|c| is_word(c) || matches!(c, ',' | ':'));
    if is_valid {
        return Vec::new();
    }
    let rule = "a condition reason must start with alphabetic character, optionally followed by a string of \
        alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
    let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
    vec![mismatch(rule, "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", &examples)]
}

/// Validates labels. Each error names the whole map, as upstream's do.
pub fn labels(labels: &BTreeMap<String, String>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in labels {
        errors.extend(label_key(key, path));
        errors.extend(
            label_value(value).into_iter().map(|m| FieldError::invalid(path, value.as_str(), m)),
        );
    }
    errors
}

/// Validates a label key, with or without a prefix.
pub fn label_key(key: &str, path: &Path) -> ErrorList {
    qualified_name(key).into_iter().map(|m| FieldError::invalid(path, key, m)).collect()
}

/// Validates annotations: their keys, and their total size of 256 KiB.
pub fn annotations(annotations: &BTreeMap<String, String>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for key in annotations.keys() {
        errors.extend(
            qualified_name(&key.to_lowercase())
                .into_iter()
                .map(|m| FieldError::invalid(path, key.as_str(), m)),
        );
    }
    errors.extend(annotations_size(annotations, path));
    errors
}

/// Validates the total size of annotations.
pub fn annotations_size(annotations: &BTreeMap<String, String>, path: &Path) -> Option<FieldError> {
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    (size > ANNOTATIONS_MAX_BYTES).then(|| FieldError::too_long(path, ANNOTATIONS_MAX_BYTES))
}

/// Replaces the trailing dash of a `generateName` by a letter, because characters are appended to it.
pub fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(stem) if name.len() > 1 => format!("{stem}a"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_names() {
        type Check = fn(&str) -> Vec<String>;
        let long = "a".repeat(64);
        let cases: &[(&str, Check, &[&str], &[&str])] = &[
            (
                "label",
                dns1123_label,
                &["a", "0", "a-b"],
                &["", "-a", "a-", "A", "a.b", "a_b", &long],
            ),
            (
                "search domain",
                dns1123_subdomain_with_underscore,
                &["a", "_sip._tcp.abc_d.example.com", "a__b", "0"],
                &["", "_", "a_", "__a", "a.", "A_b", &"a".repeat(254)],
            ),
            (
                "subdomain",
                dns1123_subdomain,
                &["a", "a.b-c.d", "0.1", &long],
                &["", ".", "a..b", "a.", ".a", "a/b", "A.b"],
            ),
            ("dns1035", dns1035_label, &["a", "a0"], &["", "0a", "a-", "A"]),
            (
                "qualified",
                qualified_name,
                &["a", "A.b_c-D", "x.y/Z", "1"],
                &["", "a/", "/a", "a/b/c", "X.y/z", "a b", "-a", &long],
            ),
            ("value", label_value, &["", "a", "A_b.c-d"], &["-", "a b", "a/b", &long]),
            (
                "port name",
                port_name,
                &["http", "a-1"],
                &["", "80", "a--b", "-a", "abcdefghijklmnop", "A"],
            ),
            ("env", env_var_name, &["A", "a.b-c", "1x y"], &["", "a=b", "ä"]),
            ("key", config_map_key, &["a", ".b", "a..b"], &["", ".", "..", "..a", "a b"]),
            ("segment", path_segment_name, &["system:node", "a b"], &[".", "..", "a/b", "a%b"]),
            ("wildcard", wildcard_dns1123_subdomain, &["*.a.b"], &["*.", "a.b", "*a"]),
        ];
        for (rule, check, good, bad) in cases {
            for name in *good {
                assert_eq!(check(name), Vec::<String>::new(), "{rule}: {name:?}");
            }
            for name in *bad {
                assert!(!check(name).is_empty(), "{rule}: {name:?}");
            }
        }
    }

    #[test]
    fn prints_upstream_messages() {
        assert_eq!(
            dns1123_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(
            qualified_name("a b"),
            [
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
    }
}
