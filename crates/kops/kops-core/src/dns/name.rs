//! DNS names in their normal form: lower case, without the final dot.

const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Parses the name of a record; `None` if it is not a host name of at least two labels. The first label may be `*`.
pub fn parse_name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.len() > LONGEST_NAME || !text.contains('.') {
        return None;
    }
    let name = text.to_ascii_lowercase();
    let rest = name.strip_prefix("*.").unwrap_or(&name);
    rest.split('.').all(is_label).then_some(name)
}

/// Reports whether a text is a label of host names, or of service names, which contain underscores.
fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Returns a name and the names above it, the longest first.
pub(super) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| Some(name.split_once('.')?.1))
}
