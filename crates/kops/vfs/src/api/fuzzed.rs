//! Fuzzes the server of a store with damaged requests.

use futures_util::FutureExt as _;
use http::Request;
use serve::{Body, Handler as _, full};

use crate::{
    api::{
        AccessKey, Api,
        request::{Listing, S3Request},
    },
    store::Store,
};

/// Returns the request of a head in HTTP/1.1, without its version.
fn parse_head(input: &[u8]) -> Option<Request<Body>> {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        request = request.header(name, value);
    }
    request.body(full("")).ok()
}

#[test]
fn s3_requests() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let store = Store::open(&format!("file://{}", dir.path().display()));
    let key = AccessKey {
        id: "key".to_owned(),
        secret: "secret".to_owned(),
        prefix: String::new(),
        writes: Some(String::new()),
    };
    let api = Api::new(store.unwrap_or_else(|e| panic!("{e}")), "bucket", vec![key]);
    let list: &[u8] = b"GET /bucket?list-type=2&prefix=a%2Fb&max-keys=10&continuation-token=61\n\
        Host: localhost\nX-Amz-Date: 20260101T000000Z\nx-amz-content-sha256: UNSIGNED-PAYLOAD\n\
        Authorization: AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, \
        SignedHeaders=host;x-amz-date, Signature=00";
    let put: &[u8] =
        b"PUT /bucket/a.local/config?x-id=PutObject\nContent-Length: 5\nIf-Match: \"abc\"\nIf-None-Match: *";
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "s3-requests", &[list, put], |input| {
        let Some(request) = parse_head(input) else { return };
        let (head, body) = request.into_parts();
        if let Ok(read) = S3Request::read(&head) {
            let _ = Listing::read(&read);
        }
        // Nobody can sign without the secret, so nothing is answered or written.
        let answer = api.handle(Request::from_parts(head, body)).now_or_never();
        let status = answer.map(|answer| answer.status().as_u16());
        assert!(status.is_some_and(|status| (400..600).contains(&status)), "{status:?}");
        assert_eq!(std::fs::read_dir(dir.path()).map(Iterator::count).ok(), Some(0));
    });
}
