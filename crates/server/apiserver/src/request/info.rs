//! Parses a request's URL, like upstream's RequestInfo.

use std::num::{IntErrorKind, ParseIntError};

use api_meta::{Status, percent_decode, query_decode};
use http::Method;

/// A parsed request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    pub(crate) path: String,
    /// `get`, `list`, `watch`, `create` and so on. For non-resource paths, the lower-case HTTP method.
    pub(crate) verb: &'static str,
    /// `None` for non-resource paths such as discovery and health.
    pub(crate) resource: Option<ResourcePath>,
    pub(crate) query: Query,
}

/// The parts of a path that names a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The path after the subresource, which `proxy` forwards.
    pub(crate) rest: String,
    /// `true` if the path before `rest` is in canonical form: no part is empty (`//api/v1`), and no `watch` precedes a
    /// subresource. In another form, a parser that counts parts would confuse them, and a redirected client would take
    /// the first part for a host.
    pub(crate) is_canonical: bool,
}

/// The decoded query. The first value of a name counts, as in Go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: &str) -> Self {
        // As in Go, a pair with an invalid escape is dropped.
        let pairs = raw.split('&').filter(|p| !p.is_empty()).filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((query_decode(name)?, query_decode(value)?))
        });
        Self(pairs.collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Parses an integer. An empty value is like none.
    ///
    /// # Errors
    ///
    /// Returns upstream's error for a value that is no `i64`.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, Box<Status>> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: ParseIntError| {
            let cause = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Box::new(Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: {cause}")))
        })
    }

    /// Parses a boolean as apimachinery does: every value except `0` and `false` is true, so `?watch` and `?watch=1`
    /// both watch.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }
}

/// Decodes a part of a path. A part with an invalid escape is kept as it is, which matches no name.
fn unescape(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    match percent_decode(text) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => text.to_owned(),
    }
}

impl RequestInfo {
    pub(crate) fn new(method: &Method, path: &str, raw_query: &str) -> Self {
        let query = Query::parse(raw_query);
        let resource = resource_path(path);
        let verb = match &resource {
            None => plain_verb(method),
            Some((resource, watching)) => resource_verb(method, resource, *watching, &query),
        };
        let resource = resource.map(|(resource, _)| resource);
        let mut info = Self { path: path.to_owned(), verb, resource, query };
        info.one_name_by_selector();
        info
    }

    /// Returns `true` if the request is forwarded to a kubelet, Pod, Service or node and may stay open.
    pub(crate) fn is_connection(&self) -> bool {
        self.resource.as_ref().is_some_and(|r| {
            matches!(r.subresource.as_str(), "attach" | "exec" | "log" | "portforward" | "proxy")
        })
    }

    /// Sets the name of a list or watch whose field selector is `metadata.name=NAME`. It is authorized for that name,
    /// so that a kubelet may watch a single Secret.
    fn one_name_by_selector(&mut self) {
        if !matches!(self.verb, "list" | "watch" | "deletecollection") {
            return;
        }
        let Some(resource) = self.resource.as_mut().filter(|r| r.name.is_empty()) else { return };
        let selector = self.query.get("fieldSelector").unwrap_or_default();
        let name = selector.split(',').find_map(|term| {
            let value = term.strip_prefix("metadata.name=")?;
            Some(value.strip_prefix('=').unwrap_or(value))
        });
        if let Some(name) = name.filter(|n| !n.is_empty() && !n.contains('/')) {
            resource.name = name.to_owned();
        }
    }
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

fn resource_verb(
    method: &Method,
    resource: &ResourcePath,
    watching: bool,
    query: &Query,
) -> &'static str {
    let one = !resource.name.is_empty();
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if one => "delete",
        Method::DELETE => "deletecollection",
        Method::GET | Method::HEAD if watching || !one && query.flag("watch") => "watch",
        Method::GET | Method::HEAD if one => "get",
        Method::GET | Method::HEAD => "list",
        _ => "",
    }
}

/// Parses `/api/v1/…` and `/apis/GROUP/VERSION/…`. The flag is `true` for the deprecated `/watch/` form.
fn resource_path(path: &str) -> Option<(ResourcePath, bool)> {
    let trimmed = path.trim_matches('/');
    let mut parts = trimmed.split('/').map(unescape);
    let mut out = ResourcePath::default();
    match parts.next()?.as_str() {
        "api" => out.version = parts.next()?,
        "apis" => {
            out.group = parts.next()?;
            out.version = parts.next()?;
        }
        _ => return None,
    }
    let mut rest: Vec<String> = parts.collect();
    let watching = rest.first().is_some_and(|p| p == "watch");
    if watching {
        rest.remove(0);
    }
    if rest.is_empty() || rest.iter().any(String::is_empty) && rest.len() < 4 {
        return None;
    }
    // `namespaces/NAME` is a Namespace. With further parts, except subresources of Namespace, it is the scope of a
    // resource.
    let scoped = rest[0] == "namespaces"
        && rest.len() > 2
        && !(out.group.is_empty() && matches!(rest[2].as_str(), "status" | "finalize"));
    if rest[0] == "namespaces" && rest.len() > 1 {
        out.namespace.clone_from(&rest[1]);
    }
    if scoped {
        rest.drain(..2);
    }
    let mut rest = rest.into_iter();
    out.resource = rest.next()?;
    out.name = rest.next().unwrap_or_default();
    out.subresource = rest.next().unwrap_or_default();
    let rest: Vec<String> = rest.collect();
    let before = trimmed.split('/').count() - rest.len();
    out.is_canonical = !path.starts_with("//")
        && trimmed.split('/').take(before).all(|part| !part.is_empty())
        && (!watching || out.subresource.is_empty());
    out.rest = rest.join("/");
    let whole = !out.version.is_empty() && !out.resource.is_empty();
    whole.then_some((out, watching))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_verbs_and_paths_like_upstream() {
        let table = [
            ("GET", "/api/v1/namespaces", "list", "|namespaces|||"),
            ("GET", "/api/v1/namespaces/a", "get", "|namespaces||a|a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "|namespaces|finalize|a|a"),
            ("GET", "/api/v1/namespaces/a/pods", "list", "|pods||a|"),
            ("GET", "/api/v1/namespaces/a/pods/p/log", "get", "|pods|log|a|p"),
            ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection", "|pods||a|"),
            ("GET", "/apis/apps/v1/deployments?watch=1", "watch", "apps|deployments|||"),
            ("GET", "/api/v1/nodes/n1/proxy/metrics", "get", "|nodes|proxy||n1"),
            ("POST", "/apis/apps/v1/namespaces/a/deployments", "create", "apps|deployments||a|"),
            (
                "GET",
                "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Ds&watch",
                "watch",
                "|secrets||a|s",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods?watch=true", "watch", "|pods||a|"),
            ("GET", "/api/v1/watch/pods", "watch", "|pods|||"),
            (
                "GET",
                "/apis/apps/v1/watch/namespaces/a/deployments/d",
                "watch",
                "apps|deployments||a|d",
            ),
            ("GET", "/api/v1/watch/namespaces/a", "watch", "|namespaces||a|a"),
            ("GET", "/api/v1/namespaces/a/pods/p?watch=true", "get", "|pods||a|p"),
        ];
        for (method, url, verb, expected) in table {
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            let info = RequestInfo::new(&method.parse().unwrap(), path, query);
            let r = info.resource.clone().unwrap();
            assert_eq!(info.verb, verb, "{url}");
            assert!(r.is_canonical, "{url}");
            assert_eq!(
                format!("{}|{}|{}|{}|{}", r.group, r.resource, r.subresource, r.namespace, r.name),
                expected,
                "{url}"
            );
        }
        for (path, is_canonical) in [
            ("/api/v1/nodes/n1/proxy//metrics", true),
            ("/api/v1/nodes/n1/proxy/../x", true),
            ("/api/v1/nodes/", true),
            ("/api/v1/nodes/n1/", true),
            ("//api/v1/nodes/n1/proxy/metrics", false),
            ("//api/v1/nodes", false),
            ("/api//v1/nodes/n1/proxy/metrics", false),
            ("/api/v1//nodes/n1/proxy/metrics", false),
            ("/api/v1/nodes/n1//proxy/metrics", false),
            ("/api/v1/namespaces//pods/p/proxy/x", false),
            ("/api/v1/watch/nodes/n1/proxy/metrics", false),
            ("/api/v1/watch/namespaces/a/pods/p/proxy/metrics", false),
        ] {
            let info = RequestInfo::new(&Method::GET, path, "");
            let served = info.resource.is_some_and(|resource| resource.is_canonical);
            assert_eq!(served, is_canonical, "{path}");
        }
        for path in ["/", "/api", "/api/v1", "/apis/apps/v1", "/healthz", "/openapi/v3"] {
            assert_eq!(RequestInfo::new(&Method::GET, path, "").resource, None, "{path}");
        }
    }
}
