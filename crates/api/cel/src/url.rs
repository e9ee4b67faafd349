//! URLs as parsed by Go's `url.ParseRequestURI`: absolute URLs and rooted paths.

use api_meta::{percent_decode, percent_encode};

use crate::error::EvalError;

/// A URL and its parts. URLs with the same text are equal.
#[derive(Clone, Debug)]
pub struct Url {
    pub(crate) text: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) escaped_path: String,
    pub(crate) query: String,
}

impl PartialEq for Url {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, EvalError> {
        let failed =
            |what: &str| EvalError::Failed(format!("parse {}: {what}", api_meta::go_quote(text)));
        if text.is_empty() {
            return Err(failed("empty url"));
        }
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(failed("net/url: invalid control character in URL"));
        }
        let (scheme, rest) = scheme(text).map_err(failed)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(a, b)| (a, b));
        if !rest.starts_with('/') {
            if scheme.is_empty() {
                return Err(failed("invalid URI for request"));
            }
            // An opaque URL, such as `mailto:x`.
            return Ok(Self::new(text, scheme, "", "", query));
        }
        let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(authority) => {
                let end = authority.find('/').unwrap_or(authority.len());
                authority.split_at(end)
            }
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        if let Some(problem) = host_problem(host) {
            return Err(failed(&problem));
        }
        if percent_decode(path).is_err() {
            let at = path.find('%').unwrap_or_default();
            let shown: String = path[at..].chars().take(3).collect();
            return Err(failed(&format!("invalid URL escape {}", api_meta::go_quote(&shown))));
        }
        Ok(Self::new(text, scheme, host, &escaped(path), query))
    }

    fn new(text: &str, scheme: &str, host: &str, path: &str, query: &str) -> Self {
        let scheme = scheme.to_ascii_lowercase();
        let text = match text.find(':').filter(|_| !scheme.is_empty()) {
            Some(colon) => format!("{scheme}{}", &text[colon..]),
            None => text.to_owned(),
        };
        Self {
            text,
            scheme,
            host: host.to_owned(),
            escaped_path: path.to_owned(),
            query: query.to_owned(),
        }
    }

    /// Returns the host without port, and an IPv6 address without brackets.
    pub(crate) fn hostname(&self) -> &str {
        let (name, _) = split_port(&self.host);
        name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name)
    }

    pub(crate) fn port(&self) -> &str {
        split_port(&self.host).1
    }

    /// Returns the query's keys and values, in order. Invalid pairs are skipped.
    pub(crate) fn pairs(&self) -> Vec<(String, Vec<String>)> {
        let mut pairs: Vec<(String, Vec<String>)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for part in self.query.split('&').filter(|part| !part.is_empty() && !part.contains(';')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (Some(key), Some(value)) =
                (api_meta::query_decode(key), api_meta::query_decode(value))
            else {
                continue;
            };
            let at = *places.entry(key.clone()).or_insert_with(|| {
                pairs.push((key, Vec::new()));
                pairs.len() - 1
            });
            pairs[at].1.push(value);
        }
        pairs
    }
}

fn scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            '0'..='9' | '+' | '-' | '.' => return Ok(("", text)),
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn split_port(host: &str) -> (&str, &str) {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => (&host[..colon], &host[colon + 1..]),
        _ => (host, ""),
    }
}

/// Returns the reason why Go rejects a host.
fn host_problem(host: &str) -> Option<String> {
    if host.starts_with('[') && !host.contains(']') {
        return Some("missing ']' in host".to_owned());
    }
    let (name, port) = split_port(host);
    if !port.bytes().all(|b| b.is_ascii_digit())
        || !host.starts_with('[') && name.contains(':') && port.is_empty()
    {
        return Some(format!(
            "invalid port {} after host",
            api_meta::go_quote(&format!(":{port}"))
        ));
    }
    let is_invalid =
        |c: &char| matches!(c, ' ' | '<' | '>' | '"' | '\\' | '^' | '`' | '{' | '|' | '}');
    let invalid = name.chars().find(is_invalid)?;
    Some(format!("invalid character {} in host name", api_meta::go_quote(&invalid.to_string())))
}

/// Returns the path with percent-encoding.
fn escaped(path: &str) -> String {
    percent_encode(path, b"-_.~$&+,/:;=@%!'()*[]")
}
