//! Tests of a store in Google's Cloud Storage: signatures, conditions by generation, and hostile answers.

use std::collections::BTreeMap;

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use vfs::{Error, Precondition, Secrecy, Store};

use crate::fake::{Fake, ReceivedRequest, Reply, problem, whole};

const SECRET: &str = "hidden";

fn open(fake: &Fake) -> Store {
    let endpoint = format!("http://{}", fake.address);
    let store = Store::open_in("gs://bucket/pre/fix", &|name| {
        Some(match name {
            "GS_ENDPOINT" => endpoint.clone(),
            "GS_ACCESS_KEY_ID" => "key".to_owned(),
            "GS_SECRET_ACCESS_KEY" => SECRET.to_owned(),
            // These belong to another server.
            "S3_ENDPOINT" => "http://192.0.2.1".to_owned(),
            "KOPS_STATE_S3_ACL" => "bucket-owner-full-control".to_owned(),
            _ => return None,
        })
    });
    store.unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the headers by their lower-case names.
fn headers(request: &ReceivedRequest) -> BTreeMap<String, String> {
    let lines = request.head.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect()
}

/// Returns the signature that Google would expect, computed from the received text.
fn expected(request: &ReceivedRequest, headers: &BTreeMap<String, String>) -> String {
    let mac = |key: &[u8], text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
    };
    let names: Vec<&String> =
        headers.keys().filter(|name| *name == "host" || name.starts_with("x-goog-")).collect();
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    let lines: String = names.iter().map(|name| format!("{name}:{}\n", headers[*name])).collect();
    let joined = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(";");
    let canonical = format!(
        "{}\n{path}\n{}\n{lines}\n{joined}\n{}",
        request.method,
        pairs.join("&"),
        headers["x-goog-content-sha256"]
    );
    let (at, sum) =
        (&headers["x-goog-date"], digest::digest(&digest::SHA256, canonical.as_bytes()));
    let scope = format!("{}/auto/storage/goog4_request", &at[..8]);
    let text = format!("GOOG4-HMAC-SHA256\n{at}\n{scope}\n{}", HEXLOWER.encode(sum.as_ref()));
    let key =
        scope.split('/').fold(format!("GOOG4{SECRET}").into_bytes(), |key, part| mac(&key, part));
    let signature = HEXLOWER.encode(&mac(&key, &text));
    format!(
        "GOOG4-HMAC-SHA256 Credential=key/{scope}, SignedHeaders={joined}, Signature={signature}"
    )
}

/// Starts a server with one object, which checks signatures and conditions as Google's does.
fn server() -> Fake {
    let kept: Mutex<Option<u64>> = Mutex::new(None);
    Fake::start(move |request, before| {
        let headers = headers(request);
        if headers.keys().any(|name| name.starts_with("x-amz-")) {
            return problem("400 Bad Request", "ExcessHeaderValues");
        }
        if headers["authorization"] != expected(request, &headers) {
            return problem("403 Forbidden", "SignatureDoesNotMatch");
        }
        let mut kept = kept.lock();
        let wanted = headers.get("x-goog-if-generation-match").map(|text| text.parse::<u64>());
        if wanted.is_some_and(|wanted| wanted != Ok(kept.unwrap_or(0))) {
            return problem("412 Precondition Failed", "PreconditionFailed");
        }
        let generation = |number: u64| format!("ETag: \"same\"\r\nx-goog-generation: {number}\r\n");
        match (request.method.as_str(), *kept) {
            ("PUT", _) => {
                let number = 100 + before as u64;
                *kept = Some(number);
                whole("200 OK", &generation(number), "")
            }
            ("DELETE", Some(_)) => {
                *kept = None;
                whole("204 No Content", "", "")
            }
            ("HEAD" | "GET", Some(number)) => whole("200 OK", &generation(number), ""),
            ("HEAD", None) => whole("404 Not Found", "", ""),
            _ => problem("404 Not Found", "NoSuchKey"),
        }
    })
}

#[test]
fn writes_are_signed_and_conditional() {
    let fake = server();
    let store = open(&fake);
    let name = "a b/é+c";
    assert!(store.read(name).unwrap().is_none());
    let write = |since: &Precondition| store.write(name, b"content", since, Secrecy::Open);
    let first = write(&Precondition::Absent).unwrap();
    assert!(matches!(write(&Precondition::Absent), Err(Error::Conflict { .. })));
    let second = write(&Precondition::Read(first.clone())).unwrap();
    // The content is the same, and so is its tag: only the generation tells the two versions apart.
    assert_ne!(first, second);
    assert!(matches!(write(&Precondition::Read(first.clone())), Err(Error::Conflict { .. })));
    assert_eq!(store.read(name).unwrap().unwrap().1, second);
    assert!(matches!(store.remove(name, &first), Err(Error::Conflict { .. })));
    store.remove(name, &second).unwrap();
    store.discard(name).unwrap();
    for request in fake.requests() {
        assert_eq!(request.path, "/bucket/pre/fix/a%20b/%C3%A9%2Bc");
        assert!(!request.head.contains(SECRET), "{}", request.head);
    }
}

#[test]
fn lists_with_a_signed_query() {
    let page = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>\
        <Contents><Key>pre/fix/d/a+b</Key><Generation>5</Generation><ETag>\"x\"</ETag><Size>1</Size></Contents>\
        <Contents><Key>elsewhere</Key></Contents></ListBucketResult>";
    let fake = Fake::start(move |request, _| {
        let headers = headers(request);
        if headers["authorization"] != expected(request, &headers) {
            return problem("403 Forbidden", "SignatureDoesNotMatch");
        }
        whole("200 OK", "", page)
    });
    assert_eq!(open(&fake).list("d").unwrap(), ["d/a b"]);
}

#[test]
fn rejects_wrong_keys_and_hostile_answers() {
    let refused = Fake::start(|_, _| problem("403 Forbidden", "SignatureDoesNotMatch"));
    let error = open(&refused).read("a").unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch: said so; check the credentials"), "{error}");
    let without = Fake::start(|_, _| whole("200 OK", "ETag: \"a\"\r\n", "content"));
    let error = open(&without).read("a").unwrap_err().to_string();
    assert!(error.contains("it has no version"), "{error}");
    let large = Fake::start(|_, _| {
        let head = "HTTP/1.1 200 OK\r\nx-goog-generation: 1\r\nContent-Length: 99999999999\r\n\r\n";
        Reply::Endless(head.as_bytes().to_vec())
    });
    assert!(matches!(open(&large).read("a"), Err(Error::TooMuch { .. })));
    let moved = Fake::start(|_, _| {
        whole("307 Temporary Redirect", "Location: http://192.0.2.1/bucket/a\r\n", "")
    });
    let error = open(&moved).read("a").unwrap_err().to_string();
    assert!(error.contains("gets no credentials"), "{error}");
    for (url, reason) in [
        ("gs://b", "does not name a bucket"),
        ("gs://bucket/../a", "object"),
        ("gs://bucket", "HMAC key"),
        ("gcs://bucket", "gcs is not built yet"),
    ] {
        let error = Store::open_in(url, &|_| None).unwrap_err().to_string();
        assert!(error.contains(reason), "{url}: {error}");
    }
}
