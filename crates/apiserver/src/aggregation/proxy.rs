//! Requests that another API server answers, passed on as they come, in their caller's name.

use std::{net::IpAddr, sync::Arc, time::Duration};

use api_meta::{UserInfo, percent_decode};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper::upgrade::OnUpgrade;
use serve::{Body, Connection};

use super::{known::Remote, services::Aggregation};
use crate::{
    answer,
    outbound::{
        aggregated::{Lane, Unanswered, open_api_reader},
        onward,
    },
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// What lets a browser's page of elsewhere in is not another server's to say.
const CROSS_ORIGIN: &str = "access-control-";

/// How long the other server may take to begin its answer; `None` for what stays open.
pub(crate) type Patience = Option<Duration>;

impl Aggregation {
    /// Passes a request on. What was found out about its caller was taken out of its headers before.
    pub(crate) async fn proxy(
        &self,
        tasks: &rt::Tasks,
        remote: &Remote,
        user: &UserInfo,
        mut request: Request<Body>,
        patience: Patience,
    ) -> Response<Body> {
        if !is_plain(request.uri().path()) {
            return text(StatusCode::NOT_FOUND, "404 page not found");
        }
        if !remote.available {
            return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
        }
        let upgraded = request.extensions_mut().remove::<OnUpgrade>();
        let request = onward_request(request);
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let lane = if patience.is_none() { Lane::Own } else { Lane::Shared };
        let sent = remote.reference.send(&self.backends, user, lane, request);
        let sent = match patience {
            None => sent.await,
            Some(time) => match tokio::time::timeout(time, sent).await {
                Ok(sent) => sent,
                Err(_) => Err(Unanswered::Failed("context deadline exceeded".to_owned())),
            },
        };
        let mut response = match sent {
            Ok(response) => response,
            Err(Unanswered::Nowhere(why)) => {
                tracing::warn!(server = %remote.reference.url(""), %why, "another API server is not to be found");
                return text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
            }
            Err(Unanswered::Failed(why)) => {
                let words = format!("error trying to reach service: {why}");
                return text(StatusCode::SERVICE_UNAVAILABLE, &words);
            }
            Err(error @ Unanswered::Unnameable(_)) => {
                return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
        };
        // Whoever followed would go where the other server sends him, with what he shows to us.
        if response.status().is_redirection() && response.headers().contains_key(header::LOCATION) {
            let words = "the backend attempted to redirect this request, which is not permitted";
            return answer::bytes(StatusCode::BAD_GATEWAY, "text/plain; charset=utf-8", words);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return match upgraded.filter(|_| upgrades) {
                Some(upgraded) => onward::joined(tasks, response, upgraded),
                None => text(StatusCode::BAD_GATEWAY, "the backend switched protocols unasked"),
            };
        }
        strip(response.headers_mut());
        response
    }

    /// Passes on a request for the other server's OpenAPI document, in the name of somebody who may read that and nothing
    /// else. The hash by which the client asks keeps it from an old document in a cache of its own; the other server's
    /// hash may be another by now, and it would answer with a redirection.
    pub(crate) async fn document(
        &self,
        tasks: &rt::Tasks,
        remote: &Remote,
        mut request: Request<Body>,
        patience: Patience,
    ) -> Response<Body> {
        let path = request.uri().path().trim_end_matches('/').parse();
        *request.uri_mut() = path.unwrap_or_else(|_| Uri::from_static("/"));
        self.proxy(tasks, remote, &open_api_reader(), request, patience).await
    }
}

/// The request as the other server gets it, but for whom it is asked for.
fn onward_request(request: Request<Body>) -> Request<Body> {
    let peer = request.extensions().get::<Arc<Connection>>().and_then(|c| c.peer);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let upgrades = parts.headers.contains_key(header::UPGRADE);
    let mut onward = Request::new(body);
    *onward.method_mut() = parts.method;
    *onward.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *onward.headers_mut() = onward::headers(&parts.headers, upgrades);
    forwarded(onward.headers_mut(), parts.uri.path(), peer.map(|peer| peer.ip()));
    onward
}

/// Says for whom the request is passed on: backends note it in their audit logs.
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
    onward::answered(headers);
    let foreign = headers.keys().filter(|name| name.as_str().starts_with(CROSS_ORIGIN));
    let foreign: Vec<HeaderName> = foreign.cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

/// Whether everybody reads a path alike: we decide by its parts who may ask for it, and so does the other server.
fn is_plain(path: &str) -> bool {
    let inner = path.strip_suffix('/').unwrap_or(path);
    inner.split('/').skip(1).all(|part| match percent_decode(part) {
        Ok(part) => !matches!(&*part, b"" | b"." | b"..") && !part.contains(&b'/'),
        Err(_) => false,
    })
}

/// A failure in plain text, as upstream has those of its aggregator.
fn text(code: StatusCode, words: &str) -> Response<Body> {
    let mut response = answer::bytes(code, "text/plain; charset=utf-8", format!("{words}\n"));
    let sniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, sniff);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_can_be_read_in_two_ways_go_nowhere() {
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
    fn for_whom_a_request_is_passed_on_is_added_to_what_was_said() {
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
