//! Reads the body of a request within limits of length and time.

use api_meta::Status;
use bytes::Bytes;
use http::header;
use serve::Body;

use super::{call::Call, state::State};
use crate::request::body::{self, BodyError, RequestBody};

/// Upstream's maximum length of a body.
const BODY_LIMIT: usize = 3 << 20;

/// Returns the whole body. It is received on the first call.
pub(crate) async fn read_body(state: &State, call: &Call) -> Result<Bytes, Box<Status>> {
    let whole = match call.take_body() {
        RequestBody::Nothing => return Ok(Bytes::new()),
        RequestBody::Coming(body) => receive(state, call, body).await,
        RequestBody::Whole(whole) => whole,
    };
    *call.received() = RequestBody::Whole(whole.clone());
    whole
}

async fn receive(state: &State, call: &Call, body: Body) -> Result<Bytes, Box<Status>> {
    let too_large = || Box::new(Status::request_too_large(format!("limit is {BODY_LIMIT}")));
    let declared = call
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok());
    if declared.is_some_and(|length: usize| length > BODY_LIMIT) {
        return Err(too_large());
    }
    let whole = body::whole(body, BODY_LIMIT);
    // A sender that never finishes must not hold its seat indefinitely.
    match tokio::time::timeout(state.config.request_timeout, whole).await {
        Ok(Ok(whole)) => Ok(whole),
        Ok(Err(BodyError::TooLong)) => Err(too_large()),
        Ok(Err(BodyError::Broken(error))) => {
            Err(Box::new(Status::bad_request(format!("reading the request's body: {error}"))))
        }
        Err(_) => {
            let message = "request did not complete within the allotted timeout";
            Err(Box::new(Status::timeout(message, 0)))
        }
    }
}
