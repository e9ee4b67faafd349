//! Headers of proxied requests, and the joining of upgraded connections.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serve::Body;

/// Hop-by-hop headers (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Returns the headers of the proxied request: all but hop-by-hop headers and those that `Connection` names.
/// Credentials must already have been removed.
pub(crate) fn headers(given: &HeaderMap, upgrade: bool) -> HeaderMap {
    let named: Vec<String> = given
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let stays = |name: &HeaderName| {
        name != header::HOST
            && !HOP_BY_HOP.contains(name)
            && !matches!(name.as_str(), "keep-alive" | "proxy-connection")
            && !named.iter().any(|named| named == name.as_str())
            && (upgrade || !name.as_str().starts_with("sec-websocket-"))
    };
    let mut onward = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| stays(name)) {
        onward.append(name, value.clone());
    }
    if let Some(protocol) = given.get(header::UPGRADE).filter(|_| upgrade) {
        onward.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        onward.insert(header::UPGRADE, protocol.clone());
    }
    onward
}

/// Removes hop-by-hop headers from a response.
pub(crate) fn answered(headers: &mut HeaderMap) {
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// Returns the response to an upgrade, and spawns a task that copies data between client and backend.
pub(crate) fn joined(
    tasks: &rt::Tasks,
    mut response: Response<Body>,
    upgraded: OnUpgrade,
) -> Response<Body> {
    let mut head = Response::new(serve::full(Vec::new()));
    *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *head.headers_mut() = response.headers().clone();
    tasks.spawn_until_shutdown("streaming", async move {
        let joined = async {
            let backend = hyper::upgrade::on(&mut response).await?;
            let caller = upgraded.await?;
            let (mut caller, mut backend) = (TokioIo::new(caller), TokioIo::new(backend));
            let _ = tokio::io::copy_bidirectional(&mut caller, &mut backend).await;
            Ok::<_, hyper::Error>(())
        };
        if let Err(error) = joined.await {
            tracing::debug!(%error, "failed to join an upgraded connection");
        }
    });
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_hop_by_hop_headers() {
        let given: HeaderMap = [
            ("host", "api"),
            ("connection", "Upgrade, X-Mine"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "k"),
            ("te", "trailers"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("transfer-encoding", "chunked"),
            ("x-mine", "1"),
            ("accept", "a"),
        ]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
        let names = |upgrade| {
            let onward = headers(&given, upgrade);
            let mut names: Vec<_> = onward.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(false), ["accept"]);
        assert_eq!(names(true), ["accept", "connection", "sec-websocket-key", "upgrade"]);
        assert_eq!(headers(&given, true)[header::CONNECTION], "Upgrade");
    }
}
