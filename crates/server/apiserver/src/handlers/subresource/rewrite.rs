//! Rewrites links in responses of proxied Pods and Services. Absolute paths get the proxy's path as prefix; a browser
//! would otherwise leave the backend with the first click.

use bytes::Bytes;
use http::{HeaderValue, Response, Uri, header};
use http_body_util::BodyExt as _;
use serve::Body;

/// The path prefix of a proxy and the authority of its backend.
#[derive(Clone)]
pub(super) struct LinkRewriter {
    pub(super) prefix: String,
    pub(super) authority: String,
}

impl LinkRewriter {
    /// Rewrites the `Location` header and the links of an HTML page.
    pub(super) fn answer(&self, mut response: Response<Body>) -> Response<Body> {
        let headers = response.headers_mut();
        for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
            headers.remove(name);
        }
        headers.remove("keep-alive");
        let location = headers.get(header::LOCATION).and_then(|url| url.to_str().ok());
        if let Some(url) = location.and_then(|url| self.link(url))
            && let Ok(url) = HeaderValue::from_str(&url)
        {
            headers.insert(header::LOCATION, url);
        }
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let html = kind.is_some_and(|kind| kind.split(';').next() == Some("text/html"));
        if !html || headers.contains_key(header::CONTENT_ENCODING) {
            return response;
        }
        headers.remove(header::CONTENT_LENGTH);
        let page = Page { proxied: self.clone(), held: Vec::new() };
        response.map(|body| {
            let pieces = futures_util::stream::unfold(Some((body, page)), |state| async {
                let (mut body, mut page) = state?;
                Some(match body.frame().await {
                    Some(Ok(frame)) => {
                        let piece = frame.into_data().map(|data| page.push(&data));
                        (Ok(frame_of(piece.unwrap_or_default())), Some((body, page)))
                    }
                    Some(Err(error)) => (Err(error), None),
                    None => (Ok(frame_of(page.end())), None),
                })
            });
            http_body_util::StreamBody::new(pieces).boxed_unsync()
        })
    }

    /// Returns the rewritten URL, or `None` if it can stay.
    fn link(&self, url: &str) -> Option<String> {
        let prefix = &self.prefix;
        if url.starts_with("//") {
            return None;
        }
        if url.contains("://") {
            let uri: Uri = url.parse().ok()?;
            let same = uri.authority().is_some_and(|a| a.as_str() == self.authority);
            let path = uri.path_and_query().map_or("/", |p| p.as_str());
            return same.then(|| format!("{prefix}{path}"));
        }
        let inside =
            url == prefix || url.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        (url.starts_with('/') && !inside).then(|| format!("{prefix}{url}"))
    }
}

fn frame_of(piece: Vec<u8>) -> http_body::Frame<Bytes> {
    http_body::Frame::data(Bytes::from(piece))
}

/// The attributes that contain URLs, by element.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["formaction", "src", "usemap"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// The maximum length of a buffered tag. Longer tags are passed on unchanged, to bound the memory.
const LONGEST_TAG: usize = 64 << 10;

/// Rewrites a page piece by piece. Pieces may be cut anywhere.
struct Page {
    proxied: LinkRewriter,
    /// The beginning of an incomplete tag.
    held: Vec<u8>,
}

impl Page {
    /// Adds a piece and returns the output that is complete.
    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut page = std::mem::take(&mut self.held);
        page.extend_from_slice(piece);
        let mut out = Vec::with_capacity(page.len());
        let mut rest = page.as_slice();
        while let Some(start) = rest.iter().position(|b| *b == b'<') {
            out.extend_from_slice(&rest[..start]);
            rest = &rest[start..];
            // Not every `<` begins a tag.
            if rest.get(1).is_some_and(|next| !next.is_ascii_alphabetic() && !b"/!?".contains(next))
            {
                out.push(b'<');
                rest = &rest[1..];
                continue;
            }
            match tag_end(rest) {
                Some(end) => {
                    self.tag(&rest[..end], &mut out);
                    rest = &rest[end..];
                }
                None if rest.len() < LONGEST_TAG => {
                    self.held = rest.to_vec();
                    return out;
                }
                None => break,
            }
        }
        out.extend_from_slice(rest);
        out
    }

    /// Returns the rest at the end of the page.
    fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    fn tag(&self, tag: &[u8], out: &mut Vec<u8>) {
        let Ok(text) = std::str::from_utf8(tag) else { return out.extend_from_slice(tag) };
        let name_end = text[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(1, |n| n + 1);
        let (name, mut rest) = text.split_at(name_end);
        let name = name[1..].to_ascii_lowercase();
        let Some((_, names)) = LINKS.iter().find(|(element, _)| *element == name) else {
            return out.extend_from_slice(tag);
        };
        out.extend_from_slice(&tag[..name_end]);
        while let Some(attribute) = Attribute::next(rest) {
            out.extend_from_slice(attribute.before.as_bytes());
            let is_link = names.contains(&attribute.name.to_ascii_lowercase().as_str());
            match self.proxied.link(attribute.value).filter(|_| is_link) {
                Some(link) => out.extend_from_slice(link.as_bytes()),
                None => out.extend_from_slice(attribute.value.as_bytes()),
            }
            out.extend_from_slice(attribute.quote.as_bytes());
            rest = attribute.after;
        }
        out.extend_from_slice(rest.as_bytes());
    }
}

/// Returns the length of the tag at the start of the text. Quoted values may contain `>`.
fn tag_end(tag: &[u8]) -> Option<usize> {
    let mut quote = None;
    for (index, byte) in tag.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(index + 1),
            // A quote begins a value only after an equals sign, because text may contain apostrophes.
            (None, b'"' | b'\'') if tag[..index].trim_ascii_end().ends_with(b"=") => {
                quote = Some(*byte);
            }
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    None
}

/// An attribute with a quoted value.
struct Attribute<'a> {
    name: &'a str,
    value: &'a str,
    quote: &'a str,
    /// The text up to the value.
    before: &'a str,
    /// The text after the closing quote.
    after: &'a str,
}

impl<'a> Attribute<'a> {
    /// Finds the next attribute with a quoted value.
    fn next(text: &'a str) -> Option<Self> {
        let mut from = 0;
        loop {
            let equals = from + text[from..].find('=')?;
            let behind = &text[equals + 1..];
            let value = behind.trim_start();
            let quote = value.get(..1).filter(|q| *q == "\"" || *q == "'");
            let Some(quote) = quote else {
                from = equals + 1;
                continue;
            };
            let start = text.len() - value.len() + 1;
            let end = start + text[start..].find(quote)?;
            let name = text[..equals].trim_end();
            let name = name.rsplit(|c: char| c.is_ascii_whitespace() || c == '/').next()?;
            let (before, value, after) = (&text[..start], &text[start..end], &text[end + 1..]);
            return Some(Self { name, value, quote, before, after });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/n/pods/p:80/proxy";

    fn proxied() -> LinkRewriter {
        LinkRewriter { prefix: PREFIX.into(), authority: "10.0.0.1:80".into() }
    }

    #[test]
    fn prefixes_absolute_links_with_proxy_path() {
        for (url, wanted) in [
            ("/a", Some("/a")),
            ("/a?b=c#d", Some("/a?b=c#d")),
            ("a/b", None),
            ("#d", None),
            ("//elsewhere/a", None),
            ("http://elsewhere/a", None),
            ("http://10.0.0.1:80/a?b", Some("/a?b")),
            ("mailto:a@b", None),
            ("/api/v1/namespaces/n/pods/p:80/proxy/a", None),
        ] {
            let wanted = wanted.map(|path| format!("{PREFIX}{path}"));
            assert_eq!(proxied().link(url), wanted, "{url}");
        }
    }

    #[test]
    fn rewrites_page_regardless_of_cuts() {
        let page = "<!DOCTYPE html><p title=\"/x\">it's 1 < 2 <A class='q' HREF=\"/a\" id=x>b</a>\
            <img src = '/i>.png' alt=\"/alt\"><a href=c>d</a><a href=/bare>e</a>\u{e9}<br/>";
        let wanted = page
            .replace("\"/a\"", &format!("\"{PREFIX}/a\""))
            .replace("'/i>", &format!("'{PREFIX}/i>"));
        for cut in 0..page.len() {
            let mut rewriter = Page { proxied: proxied(), held: Vec::new() };
            let mut out = rewriter.push(&page.as_bytes()[..cut]);
            out.extend(rewriter.push(&page.as_bytes()[cut..]));
            out.extend(rewriter.end());
            assert_eq!(String::from_utf8(out).unwrap(), wanted, "cut at {cut}");
        }
    }
}
