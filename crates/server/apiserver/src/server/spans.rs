//! The spans of requests, with upstream's names and attributes.

use api_meta::{Status, UserInfo};
use http::{Request, Response};
use otlp::{Span, Tracer};
use serve::Body;

use crate::{auditing, request::RequestInfo};

/// Starts the span of an authorized request.
pub(super) fn request_span(
    tracer: &Tracer,
    request: &Request<Body>,
    info: &RequestInfo,
    user: &UserInfo,
) -> Span {
    let is_trusted = user.may_decide_tracing();
    let (method, headers) = (request.method().as_str(), request.headers());
    let mut span = tracer.server_span(|| name(method, info), headers, is_trusted);
    if span.is_recording() {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        span.set("http.request.method", method);
        span.set("url.path", request.uri().path());
        span.set("http.target", target);
        span.set("audit-id", auditing::text(headers, auditing::HEADER).unwrap_or_default());
        span.set("user_agent.original", auditing::text(headers, "user-agent").unwrap_or_default());
    }
    span
}

/// Records the result of a request.
pub(super) fn finish(span: &mut Span, done: &Result<Response<Body>, Box<Status>>) {
    if !span.is_recording() {
        return;
    }
    let code = match done {
        Ok(response) => response.status().as_u16(),
        Err(status) => status.code,
    };
    span.set("http.response.status_code", code);
    if code >= 500 {
        span.fail("");
    }
}

/// Returns the name of a request's span: the method, and for resources the path without names of objects.
fn name(method: &str, info: &RequestInfo) -> String {
    let Some(path) = &info.resource else { return method.to_owned() };
    let mut name = match path.group.as_str() {
        "" => format!("{method} /api/{}", path.version),
        group => format!("{method} /apis/{group}/{}", path.version),
    };
    if !path.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.extend(["/", &path.resource]);
    if !path.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !path.subresource.is_empty() {
        name.extend(["/", &path.subresource]);
    }
    name
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn names_spans_like_upstream() {
        for (path, wanted) in [
            ("/healthz", "GET"),
            ("/api/v1/nodes", "GET /api/v1/nodes"),
            ("/api/v1/namespaces/a", "GET /api/v1/namespaces/{:namespace}/namespaces/{:name}"),
            (
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "GET /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}/scale",
            ),
        ] {
            assert_eq!(name("GET", &RequestInfo::new(&Method::GET, path, "")), wanted);
        }
    }
}
