//! Reads request bodies of limited length.

use api_meta::Status;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serve::{Body, BoxError};

/// The error of reading a body.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLong,
    Broken(BoxError),
}

/// The body of a request. It is received once and can be read again.
#[derive(Default)]
pub(crate) enum RequestBody {
    /// No body, or one that was passed on.
    #[default]
    Nothing,
    Coming(Body),
    Whole(Result<Bytes, Box<Status>>),
}

impl RequestBody {
    /// Returns the length, or `None` if the sender does not declare it.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Coming(body) => body.size_hint().exact(),
            Self::Whole(Ok(bytes)) => Some(bytes.len() as u64),
            Self::Nothing | Self::Whole(Err(_)) => Some(0),
        }
    }
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn whole(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    // Boxed, because the compiler cannot prove that this future is `Send`.
    match Limited::new(body, limit).collect().boxed().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLong),
        Err(error) => Err(BodyError::Broken(error)),
    }
}
