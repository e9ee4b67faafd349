//! The body of requests and responses.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};

/// The error of a body or a stream.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or response. It is the API client's type, so that in-process requests need no conversion.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Returns a body that is complete in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that keeps a value until it has ended or is dropped.
pub struct BodyWithGuard<T> {
    body: Body,
    _held: T,
}

impl<T> BodyWithGuard<T> {
    /// Wraps a body with a value that is dropped after it.
    pub fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> http_body::Body for BodyWithGuard<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
