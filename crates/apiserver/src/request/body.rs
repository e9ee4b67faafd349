//! Reading of whole bodies, which are bounded in length.

use api_meta::Status;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serve::{Body, BoxError};

/// Why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLong,
    Broken(BoxError),
}

/// The body of a request, which is received once and may be read again.
#[derive(Default)]
pub(crate) enum Received {
    /// No body, or one that was handed on.
    #[default]
    Nothing,
    Coming(Body),
    Whole(Result<Bytes, Box<Status>>),
}

impl Received {
    /// The length as far as it is known: `None` for a sender that does not declare it.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Coming(body) => body.size_hint().exact(),
            Self::Whole(Ok(bytes)) => Some(bytes.len() as u64),
            Self::Nothing | Self::Whole(Err(_)) => Some(0),
        }
    }
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
