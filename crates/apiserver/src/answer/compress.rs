//! Gzip for large answers, piece by piece as the client takes them: what is being compressed never lies in memory
//! as a whole.

use std::{
    io::Write as _,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use serve::{Body, BoxError};

/// Upstream's threshold: below it compression costs more than it saves.
pub(crate) const LARGE: u64 = 128 << 10;
/// How much is compressed before others get their turn.
const PIECE: usize = 64 << 10;

/// Put into a response's extensions whose length is not known and that is worth compressing. Watches are not.
#[derive(Clone, Copy)]
pub(crate) struct Streamed;

/// Whether a client takes gzip.
pub(crate) fn accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).any(|coding| {
        let name = coding.split(';').next().unwrap_or_default().trim();
        name == "gzip" && crate::request::accept::quality(coding) > 0.0
    })
}

/// Says that a body is gzip.
pub(crate) fn mark(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.remove(header::CONTENT_LENGTH);
}

/// Compresses a successful answer that is large.
pub(crate) fn large(response: &mut Response<Body>) {
    let size = response.body().size_hint().exact();
    let large = size
        .map_or_else(|| response.extensions().get::<Streamed>().is_some(), |size| size >= LARGE);
    if !large
        || !response.status().is_success()
        || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return;
    }
    mark(response);
    let body = std::mem::replace(response.body_mut(), serve::full(Bytes::new()));
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let gzipped = Gzipped { body, rest: Bytes::new(), encoder: Some(encoder) };
    *response.body_mut() = gzipped.boxed_unsync();
}

struct Gzipped {
    body: Body,
    /// Taken from the body and not yet compressed.
    rest: Bytes,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl http_body::Body for Gzipped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let this = &mut *self;
            let Some(encoder) = &mut this.encoder else { return Poll::Ready(None) };
            if !this.rest.is_empty() {
                let piece = this.rest.split_to(PIECE.min(this.rest.len()));
                if let Err(error) = encoder.write_all(&piece) {
                    return Poll::Ready(Some(Err(error.into())));
                }
                if encoder.get_ref().len() >= PIECE / 4 {
                    let out = std::mem::take(encoder.get_mut());
                    return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                }
                continue;
            }
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => this.rest = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let done = this.encoder.take().map(GzEncoder::finish);
                    return Poll::Ready(done.map(|d| Ok(Frame::data(d?.into()))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn codings_are_told_apart() {
        for (text, expected) in
            [("gzip", true), ("deflate, gzip;q=0.5", true), ("gzip;q=0", false), ("br", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
            assert_eq!(accepted(&headers), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn what_is_large_is_compressed_in_pieces() {
        let text: String = (0..100_000).map(|n| format!("{n},")).collect();
        let mut response = Response::new(serve::full(text.clone()));
        large(&mut response);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let mut body = response.into_body();
        let (mut gzipped, mut pieces) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            gzipped.extend_from_slice(&frame.unwrap().into_data().unwrap());
            pieces += 1;
        }
        let mut back = String::new();
        flate2::read::GzDecoder::new(&*gzipped).read_to_string(&mut back).unwrap();
        assert_eq!(back, text);
        assert!(pieces > 1 && gzipped.len() < text.len());

        let mut small = Response::new(serve::full("small"));
        large(&mut small);
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
    }
}
