//! Compresses large responses with gzip, piece by piece while the client reads, so that the compressed body is never in
//! memory as a whole.

use std::{
    io::{Read as _, Write as _},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, buf::Reader};
use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use serve::{Body, BoxError};

/// Upstream's threshold in bytes, below which compression costs more than it saves.
pub(crate) const LARGE: u64 = 128 << 10;
/// The number of bytes that are compressed before the task yields.
const PIECE: usize = 64 << 10;

/// The response extension that marks a large body of unknown length as worth compressing. Watches do not have it.
#[derive(Clone, Copy)]
pub(crate) struct LargeStream;

/// Returns `true` if the client accepts gzip.
pub(crate) fn accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).any(|coding| {
        let name = coding.split(';').next().unwrap_or_default().trim();
        name == "gzip" && crate::request::accept::quality(coding) > 0.0
    })
}

/// Sets the headers of a gzip body.
pub(crate) fn mark(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.remove(header::CONTENT_LENGTH);
}

/// Compresses the body of a successful response if it is large.
pub(crate) fn large(response: &mut Response<Body>) {
    let size = response.body().size_hint().exact();
    let large = size
        .map_or_else(|| response.extensions().get::<LargeStream>().is_some(), |size| size >= LARGE);
    if !large
        || !response.status().is_success()
        || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return;
    }
    mark(response);
    let body = std::mem::replace(response.body_mut(), serve::full(Bytes::new()));
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let gzipped = GzipBody { body, rest: Bytes::new(), encoder: Some(encoder) };
    *response.body_mut() = gzipped.boxed_unsync();
}

struct GzipBody {
    body: Body,
    /// Bytes taken from the body and not yet compressed.
    rest: Bytes,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl http_body::Body for GzipBody {
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

/// Returns the body of a client that does not accept gzip. It is decompressed piece by piece while the client reads.
/// `size` is the size in bytes after decompression.
pub(crate) fn decompressed(compressed: Bytes, size: u64) -> Body {
    let decoder = GzDecoder::new(compressed.reader());
    DecompressedBody { decoder, left: size }.boxed_unsync()
}

struct DecompressedBody {
    decoder: GzDecoder<Reader<Bytes>>,
    /// The number of bytes that the client has not yet read.
    left: u64,
}

impl http_body::Body for DecompressedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.left == 0 {
            return Poll::Ready(None);
        }
        let most = this.left.min(PIECE as u64);
        let mut piece = Vec::with_capacity(PIECE);
        match (&mut this.decoder).take(most).read_to_end(&mut piece) {
            Ok(0) => Poll::Ready(Some(Err("the compressed document is truncated".into()))),
            Ok(read) => {
                this.left -= read as u64;
                Poll::Ready(Some(Ok(Frame::data(piece.into()))))
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_accept_encoding() {
        for (text, expected) in
            [("gzip", true), ("deflate, gzip;q=0.5", true), ("gzip;q=0", false), ("br", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
            assert_eq!(accepted(&headers), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn compresses_large_body_in_pieces() {
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
