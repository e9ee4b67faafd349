//! The time stamps of requests.

use api_meta::Timestamp;

/// Returns the current time in whole seconds, like the API's times.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(rt::now()).to_seconds()
}
