//! The body of a request, within the limits of length and time.

use api_meta::Status;
use bytes::Bytes;
use http::header;
use serve::Body;

use super::{call::Call, state::State};
use crate::request::body::{self, BodyError, Received};

/// Upstream's limit on a request's body.
const BODY_LIMIT: usize = 3 << 20;

/// Returns all of the body, which is received when it is first asked for.
pub(crate) async fn read_body(state: &State, call: &Call) -> Result<Bytes, Box<Status>> {
    let whole = match call.take_body() {
        Received::Nothing => return Ok(Bytes::new()),
        Received::Coming(body) => receive(state, call, body).await,
        Received::Whole(whole) => whole,
    };
    *call.received() = Received::Whole(whole.clone());
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
    // A sender that never comes to an end must not keep its seat for ever.
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
