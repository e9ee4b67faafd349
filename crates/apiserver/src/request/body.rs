//! Reading of whole bodies, which are bounded in length.

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serve::{Body, BoxError};

/// Why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLong,
    Broken(BoxError),
}

/// All of a body, unless it is longer than `limit`.
pub(crate) async fn whole(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    // Boxed: the compiler does not see by itself that this future may move between threads.
    match Limited::new(body, limit).collect().boxed().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLong),
        Err(error) => Err(BodyError::Broken(error)),
    }
}
