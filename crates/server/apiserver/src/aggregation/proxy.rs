//! Proxies requests to aggregated API servers on behalf of the caller.

use std::{net::IpAddr, sync::Arc, time::Duration};

use api_meta::{UserInfo, percent_decode};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper::upgrade::OnUpgrade;
use serve::{Body, Connection};

use super::{services::Aggregation, snapshot::Remote};
use crate::{
    outbound::{
        aggregated::{ConnectionMode, RequestError, open_api_reader},
        error::BackendError,
        forwarding,
    },
    response,
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// Headers with this prefix are removed from responses, because an aggregated server must not decide which origins may
/// call this server.
const CROSS_ORIGIN: &str = "access-control-";

/// The time until the response must begin; `None` for watches and connections.
pub(crate) type ProxyTimeout = Option<Duration>;

impl Aggregation {
    /// Proxies a request. Headers with credentials and identities must already have been removed.
    pub(crate) async fn proxy(
        &self,
        tasks: &rt::Tasks,
        remote: &Remote,
        user: &UserInfo,
        request: Request<Body>,
        timeout: ProxyTimeout,
    ) -> Response<Body> {
        if !remote.available && is_plain(request.uri().path()) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
        }
        let lane = if timeout.is_none() { ConnectionMode::Own } else { ConnectionMode::Shared };
        let send = async |request| {
            let sent = remote.reference.send(&self.backends, user, lane, request).await;
            sent.inspect_err(|error| {
                if let RequestError::Unresolvable(why) = error {
                    tracing::warn!(
                        server = %remote.reference.url(""), %why,
                        "an aggregated API server cannot be resolved"
                    );
                }
            })
        };
        forward(tasks, request, timeout, send).await
    }

    /// Proxies a request for the other server's OpenAPI document, as a user that may read only that. The query is
    /// dropped: its hash identifies the document in the client's cache, but the other server would answer an outdated
    /// hash with a redirect.
    pub(crate) async fn document(
        &self,
        tasks: &rt::Tasks,
        remote: &Remote,
        mut request: Request<Body>,
        timeout: ProxyTimeout,
    ) -> Response<Body> {
        let path = request.uri().path().trim_end_matches('/').parse();
        *request.uri_mut() = path.unwrap_or_else(|_| Uri::from_static("/"));
        self.proxy(tasks, remote, &open_api_reader(), request, timeout).await
    }
}

/// Forwards a request to another API server, and its response to the client. `send` adds the user headers to the
/// proxied request and sends it. Headers with credentials and identities must already have been removed.
pub(crate) async fn forward<F>(
    tasks: &rt::Tasks,
    mut request: Request<Body>,
    timeout: ProxyTimeout,
    send: impl FnOnce(Request<Body>) -> F,
) -> Response<Body>
where
    F: Future<Output = Result<Response<Body>, RequestError>>,
{
    if !is_plain(request.uri().path()) {
        return text(StatusCode::NOT_FOUND, "404 page not found");
    }
    let upgraded = request.extensions_mut().remove::<OnUpgrade>();
    let request = onward_request(request);
    let upgrades = request.headers().contains_key(header::UPGRADE);
    let sent = send(request);
    let sent = match timeout {
        None => sent.await,
        Some(time) => match tokio::time::timeout(time, sent).await {
            Ok(sent) => sent,
            Err(_) => Err(RequestError::Failed(BackendError::Deadline)),
        },
    };
    let mut response = match sent {
        Ok(response) => response,
        Err(error) => return failed(error),
    };
    // A client that follows the redirect would send its credentials to a host that the other server chose.
    if response.status().is_redirection() && response.headers().contains_key(header::LOCATION) {
        let words = "the backend attempted to redirect this request, which is not permitted";
        return response::bytes(StatusCode::BAD_GATEWAY, "text/plain; charset=utf-8", words);
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return match upgraded.filter(|_| upgrades) {
            Some(upgraded) => forwarding::joined(tasks, response, upgraded),
            None => text(StatusCode::BAD_GATEWAY, "the backend switched protocols unasked"),
        };
    }
    strip(response.headers_mut());
    response
}

fn failed(error: RequestError) -> Response<Body> {
    match error {
        RequestError::Unresolvable(_) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
        }
        RequestError::Failed(why) => {
            let words = format!("error trying to reach service: {why}");
            text(StatusCode::SERVICE_UNAVAILABLE, &words)
        }
        error @ RequestError::InvalidUser(_) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
    }
}

/// Builds the proxied request, without the user headers.
fn onward_request(request: Request<Body>) -> Request<Body> {
    let peer = request.extensions().get::<Arc<Connection>>().and_then(|c| c.peer);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let upgrades = parts.headers.contains_key(header::UPGRADE);
    let mut onward = Request::new(body);
    *onward.method_mut() = parts.method;
    *onward.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *onward.headers_mut() = forwarding::headers(&parts.headers, upgrades);
    forwarded(onward.headers_mut(), parts.uri.path(), peer.map(|peer| peer.ip()));
    onward
}

/// Adds `X-Forwarded-For` and `X-Forwarded-Uri`, which backends write to their audit logs.
fn forwarded(headers: &mut HeaderMap, path: &str, peer: Option<IpAddr>) {
    let value = |text: &str| HeaderValue::from_str(text).ok();
    if let Some(path) = value(path) {
        headers.insert(FORWARDED_URI, path);
    }
    let known = headers.get_all(FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok());
    let peer = peer.map(|ip| ip.to_canonical().to_string());
    let all: Vec<String> = known.map(str::to_owned).chain(peer).collect();
    if let Some(all) = value(&all.join(", ")).filter(|_| !all.is_empty()) {
        headers.insert(FORWARDED_FOR, all);
    }
}

fn strip(headers: &mut HeaderMap) {
    forwarding::answered(headers);
    let foreign = headers.keys().filter(|name| name.as_str().starts_with(CROSS_ORIGIN));
    let foreign: Vec<HeaderName> = foreign.cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

/// Returns `true` if the path has one reading only. Authorization depends on its parts, in this server and in the other
/// one.
fn is_plain(path: &str) -> bool {
    let inner = path.strip_suffix('/').unwrap_or(path);
    inner.split('/').skip(1).all(|part| match percent_decode(part) {
        Ok(part) => !matches!(&*part, b"" | b"." | b"..") && !part.contains(&b'/'),
        Err(_) => false,
    })
}

/// Returns a failure as plain text, like upstream's aggregator.
fn text(code: StatusCode, words: &str) -> Response<Body> {
    let mut response = response::bytes(code, "text/plain; charset=utf-8", format!("{words}\n"));
    let sniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, sniff);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_ambiguous_paths() {
        for plain in ["/apis/g/v1", "/apis/g/v1/", "/apis/g/v1/namespaces/a/things/b%20c"] {
            assert!(is_plain(plain), "{plain}");
        }
        for odd in [
            "/apis/g/v1//things",
            "/apis/g/v1/../v2/things",
            "/apis/g/v1/./things",
            "/apis/g/v1/%2e%2E/secrets",
            "/apis/g/v1/namespaces/a%2Fthings",
            "/apis/g/v1/a%zz",
            "/apis/g/v1/a//",
        ] {
            assert!(!is_plain(odd), "{odd}");
        }
    }

    #[test]
    fn appends_peer_to_forwarded_for() {
        let mut headers = HeaderMap::new();
        forwarded(&mut headers, "/apis/g/v1", None);
        assert!(!headers.contains_key(FORWARDED_FOR));
        headers.append(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1"));
        headers.append(FORWARDED_FOR, HeaderValue::from_static("192.0.2.2"));
        forwarded(&mut headers, "/apis/g/v1", Some([192, 0, 2, 3].into()));
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.1, 192.0.2.2, 192.0.2.3");
        assert_eq!(headers.get_all(FORWARDED_FOR).iter().count(), 1);
        assert_eq!(headers[FORWARDED_URI], "/apis/g/v1");
    }
}
