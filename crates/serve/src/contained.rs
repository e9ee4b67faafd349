//! Panics of handlers and of the bodies that they make: one request's, and nobody else's.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;

use crate::{Body, BoxError, Handler};

/// The handler's answer. Where it panics the answer says so, and the connection with its other requests lives on.
pub async fn contained(handler: &dyn Handler, request: Request<Body>) -> Response<Body> {
    let asked = Asked(request.method().clone(), request.uri().clone());
    let answered = rt::catch("request", asked.clone(), async { handler.handle(request).await });
    let Ok(response) = answered.await else { return handler.panicked() };
    // What is there as a whole runs no code of ours any more.
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| Contained { body: Some(body), asked }.boxed_unsync())
}

/// What was asked for, without the query, which may hold secrets.
#[derive(Clone)]
struct Asked(Method, Uri);

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.0, self.1.path())
    }
}

/// A body that is made while it is sent. A panic breaks it off, so that nobody takes the part for the whole.
struct Contained {
    body: Option<Body>,
    asked: Asked,
}

impl http_body::Body for Contained {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let next = rt::catch_sync("answer", &this.asked, || Pin::new(body).poll_frame(context));
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
