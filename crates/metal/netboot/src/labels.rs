//! The labels of a machine, from the query of its request.

use std::collections::BTreeMap;

use api_meta::query_decode;

/// Label names and values. Both are case-sensitive; only MAC addresses have one canonical form.
pub type Labels = BTreeMap<String, String>;

/// Parses a query: the first value of each key. Invalid MAC addresses are left out.
pub(crate) fn from_query(query: &str) -> Labels {
    let mut labels = Labels::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (query_decode(key), query_decode(value)) {
            labels.entry(key).or_insert(value);
        }
    }
    labels.retain(|key, value| match normal(key, value) {
        Some(normal) => {
            *value = normal;
            true
        }
        None => false,
    });
    labels
}

/// Normalises a value for comparison; `None` for an invalid MAC address.
pub(crate) fn normal(key: &str, value: &str) -> Option<String> {
    if key.eq_ignore_ascii_case("mac") { parse_mac(value) } else { Some(value.to_owned()) }
}

/// Parses a hardware address of 6, 8 or 20 bytes with colons, hyphens or dots (`5254.00a1.9cae`). Returns it in lower
/// case with colons.
pub fn parse_mac(text: &str) -> Option<String> {
    let (separator, width) = match (text.as_bytes().get(2), text.as_bytes().get(4)) {
        (Some(b':'), _) => (':', 2),
        (Some(b'-'), _) => ('-', 2),
        (_, Some(b'.')) => ('.', 4),
        _ => return None,
    };
    let mut hex = String::new();
    for part in text.split(separator) {
        if part.len() != width || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        hex.push_str(&part.to_ascii_lowercase());
    }
    if !matches!(hex.len(), 12 | 16 | 40) {
        return None;
    }
    let bytes: Vec<&str> = (0..hex.len()).step_by(2).map(|i| &hex[i..i + 2]).collect();
    Some(bytes.join(":"))
}
