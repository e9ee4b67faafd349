//! The time of requests.

use api_meta::Timestamp;

/// The moment of a request, to the second, as the API's times have it.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(rt::now()).to_seconds()
}
