//! Responses.

use bytes::Bytes;
use http::{Response, StatusCode};
use serve::{Body, answer};

/// A response that ends the handling of a request.
pub(crate) type ErrorResponse = Box<Response<Body>>;

/// Returns a response in plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", body)
}

/// Returns a value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
