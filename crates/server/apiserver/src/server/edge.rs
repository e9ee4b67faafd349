//! Handles requests before they are authenticated: answers browsers (CORS, Strict-Transport-Security), and
//! sends clients to another server while it stops.

use std::sync::{Arc, atomic::Ordering};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use serve::{Body, Connection};

use super::checks::{PAGES, Readiness};
use crate::{config::ServingOptions, response};

/// The methods and headers that scripts of allowed origins may use, as upstream's.
const METHODS: &str = "POST, GET, OPTIONS, PUT, DELETE, PATCH";
const HEADERS: &str = "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, \
    If-Modified-Since";

/// Answers a request that arrives while the server stops, and a preflight request of an allowed origin.
pub(super) fn answer(
    readiness: &Readiness,
    request: &Request<Body>,
    origin: Option<&HeaderValue>,
) -> Option<Response<Body>> {
    if readiness.refusing.load(Ordering::Relaxed) && is_refused(request) {
        let text = "The apiserver is shutting down, please try again later.\n";
        let kind = "text/plain; charset=utf-8";
        let mut refused = response::bytes(StatusCode::TOO_MANY_REQUESTS, kind, text);
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return Some(refused);
    }
    (origin.is_some() && request.method() == Method::OPTIONS).then(|| {
        let mut response = Response::new(serve::full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    })
}

/// Reports whether a request is rejected while the server stops. Probes are not, nor are requests of this process,
/// which have no connection.
fn is_refused(request: &Request<Body>) -> bool {
    let first = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
    let is_probe = PAGES.contains(&first) || first == "metrics";
    !is_probe && request.extensions().get::<Arc<Connection>>().is_some()
}

/// Returns the request's origin if it is allowed.
pub(super) fn allowed_origin(serving: &ServingOptions, headers: &HeaderMap) -> Option<HeaderValue> {
    let allowed = &serving.allowed_origins;
    let origin = headers.get(header::ORIGIN).filter(|_| !allowed.is_empty())?;
    let text = origin.to_str().ok()?;
    allowed.iter().any(|pattern| pattern.is_match(text)).then(|| origin.clone())
}

/// Adds the headers for browsers to an answer.
pub(super) fn add_headers(
    serving: &ServingOptions,
    origin: Option<HeaderValue>,
    headers: &mut HeaderMap,
) {
    let strict = &serving.strict_transport_security;
    if !strict.is_empty()
        && let Ok(value) = HeaderValue::from_str(strict)
    {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    let Some(origin) = origin else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
        (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
