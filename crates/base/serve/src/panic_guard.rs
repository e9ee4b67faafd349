//! Isolates panics of handlers and of response bodies: other requests are not affected.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;

use crate::{
    body::{Body, BoxError},
    handler::Handler,
};

/// Returns the handler's response, or an error response if the handler panics. The connection and its other requests
/// are not affected.
pub async fn handle_guarded(handler: &dyn Handler, request: Request<Body>) -> Response<Body> {
    let request_line = RequestLine(request.method().clone(), request.uri().clone());
    let answered =
        rt::catch("request", request_line.clone(), async { handler.handle(request).await });
    let Ok(response) = answered.await else { return handler.panicked() };
    // Sending a complete body runs no code of the handler.
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| GuardedBody { body: Some(body), request_line }.boxed_unsync())
}

/// The method and path of a request. The query is omitted, because it may contain secrets.
#[derive(Clone)]
struct RequestLine(Method, Uri);

impl std::fmt::Display for RequestLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.0, self.1.path())
    }
}

/// A body that is produced while it is sent. A panic aborts the body, so that the client detects that it is incomplete.
struct GuardedBody {
    body: Option<Body>,
    request_line: RequestLine,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let next =
            rt::catch_sync("answer", &this.request_line, || Pin::new(body).poll_frame(context));
        next.unwrap_or_else(|panicked| {
            this.body = None;
            Poll::Ready(Some(Err(panicked.into())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.as_ref().map(http_body::Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
