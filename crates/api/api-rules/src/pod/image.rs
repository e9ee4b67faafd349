//! Parses image references by the grammar of distribution's reference specification.

/// Returns the tag of an image reference: `latest` without a tag or digest, and empty with only a digest. Returns
/// `None` for an invalid reference.
pub(crate) fn tag(image: &str) -> Option<&str> {
    // An image ID is not a repository name.
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash separates a registry's port.
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[last..].split_once(':') {
        Some((name, tag)) => (&rest[..last + name.len()], Some(tag)),
        None => (rest, None),
    };
    if !is_name(name) || !tag.is_none_or(is_tag) || !digest.is_none_or(is_digest) {
        return None;
    }
    Some(match (tag, digest) {
        (Some(tag), _) => tag,
        (None, Some(_)) => "",
        (None, None) => "latest",
    })
}

/// Reports whether a name is valid: an optional registry host, and a path of at most 255 characters.
fn is_name(name: &str) -> bool {
    let is_host = |first: &str| {
        first == "localhost"
            || first.contains(['.', ':'])
            || first.chars().any(|c| c.is_ascii_uppercase())
    };
    let (path, implied) = match name.split_once('/') {
        Some((host, path)) if is_host(host) => {
            if !is_registry(host) {
                return false;
            }
            (path, 0)
        }
        Some(_) => (name, 0),
        None => (name, "library/".len()),
    };
    path.len() + implied <= 255 && path.split('/').all(is_component)
}

/// Reports whether a string is a host, possibly a bracketed IPv6 address, with an optional port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => {
            !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
        }
        None => host.split('.').all(is_label),
    };
    is_host && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

/// Reports whether a path component is valid: lowercase letters and digits, joined by a dot, one or two underscores, or
/// dashes.
fn is_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let joins = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_join =
        |join: &str| matches!(join, "" | "." | "_" | "__") || join.bytes().all(|b| b == b'-');
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(is_word)) && joins.into_iter().all(is_join)
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|b| is_word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, sum)) = text.split_once(':') else { return false };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    sum.len() == length && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_tag_of_valid_references_only() {
        let sum = "0".repeat(64);
        for (image, want) in [
            ("nginx", Some("latest")),
            ("nginx:1.2", Some("1.2")),
            ("nginx:latest", Some("latest")),
            ("a/b__c-d.e", Some("latest")),
            ("localhost:5000/a", Some("latest")),
            ("Registry.example:5000/a/b:v1", Some("v1")),
            ("REGISTRY/a", Some("latest")),
            ("[fd00::1]:5000/a:1", Some("1")),
            (&format!("nginx@sha256:{sum}"), Some("")),
            (&format!("nginx:latest@sha256:{sum}"), Some("latest")),
            (&sum, None),
            ("", None),
            ("Nginx", None),
            ("a/B", None),
            ("a//b", None),
            ("-a", None),
            ("a.", None),
            ("a..b", None),
            ("a___b", None),
            ("{{ .Values.image }}", None),
            ("$IMAGE", None),
            ("nginx:", None),
            ("nginx:a b", None),
            ("nginx@sha256:0", None),
            ("a_b.c/d", None),
            (&"a".repeat(248), None),
        ] {
            assert_eq!(tag(image), want, "{image}");
        }
    }
}
