//! Shows URLs in messages.

/// Returns a URL for messages, in which `data:` URLs are truncated.
pub(crate) fn displayed(url: &str) -> String {
    if url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) && url.len() > 40 {
        format!("{}…", url.chars().take(40).collect::<String>())
    } else {
        url.to_owned()
    }
}
