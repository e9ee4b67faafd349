//! Tests of a store against misbehaving S3 servers.

use std::time::Duration;

use vfs::{Error, Precondition, Secrecy};

use crate::fake::{Fake, ReceivedRequest, Reply, open, problem, whole};

const GONE: &str = "404 Not Found";
const OK: &str = "200 OK";

fn absent(request: &ReceivedRequest) -> Reply {
    // An answer to HEAD has no body.
    if request.method == "HEAD" { whole(GONE, "", "") } else { problem(GONE, "NoSuchKey") }
}

#[test]
fn retries_temporary_failures_and_returns_others() {
    let busy = Fake::start(|_, before| match before {
        0 => problem("503 Slow Down", "SlowDown"),
        1 => Reply::Bytes(Vec::new()),
        2 => {
            Reply::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: \"a\"\r\n\r\ncut".to_vec())
        }
        _ => whole(OK, "ETag: \"a\"\r\n", "content"),
    });
    assert_eq!(busy.store().read("a/config").unwrap().unwrap().0, b"content");
    assert_eq!(busy.requests().len(), 4);
    for request in busy.requests() {
        assert_eq!(request.path, "/bucket/pre/fix/a/config");
        let head = request.head.to_lowercase();
        assert!(head.contains("authorization: aws4-hmac-sha256 credential=key/"), "{head}");
        assert!(head.contains("/us-east-1/s3/aws4_request") && !head.contains("hidden"), "{head}");
    }
    let wrong = Fake::start(|_, _| problem("403 Forbidden", "SignatureDoesNotMatch"));
    let error = wrong.store().read("a").unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch: said so; check the credentials"), "{error}");
    assert_eq!(wrong.requests().len(), 1);
    let gone = Fake::start(|_, _| problem(GONE, "NoSuchBucket"));
    assert!(gone.store().read("a").unwrap_err().to_string().contains("NoSuchBucket"));
    assert!(Fake::start(|request, _| absent(request)).store().read("a").unwrap().is_none());
}

#[test]
fn rejects_answers_without_end_or_length() {
    let head = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\n";
    let chunked = Fake::start(move |_, _| {
        let head = format!("{head}Transfer-Encoding: chunked\r\n\r\nfffffffffff\r\n");
        Reply::Endless(head.into_bytes())
    });
    assert!(matches!(chunked.store().read("a"), Err(Error::TooMuch { .. })));
    let long = Fake::start(move |_, _| {
        Reply::Endless(format!("{head}Content-Length: 99999999999999\r\n\r\n").into_bytes())
    });
    assert!(matches!(long.store().read("a"), Err(Error::TooMuch { .. })));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("copy");
    assert!(matches!(long.store().fetch("a", &to), Err(Error::TooMuch { .. })));
    assert!(!to.exists());
    assert!(matches!(long.store().list("a"), Err(Error::TooMuch { .. })));
    // An answer that ends with its connection may be truncated.
    let cut = Fake::start(move |_, _| {
        Reply::Bytes(format!("{head}Connection: close\r\n\r\nhalf an obj").into_bytes())
    });
    assert!(cut.store().read("a").unwrap_err().to_string().contains("was truncated"));
    assert!(cut.store().fetch("a", &to).is_err() && !to.exists());
    let errors = Fake::start(|_, _| {
        Reply::Endless(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 99999999999\r\n\r\n".to_vec())
    });
    assert!(errors.store().read("a").is_err());
}

#[test]
fn keeps_credentials_from_other_servers() {
    let other = Fake::start(|_, _| whole(OK, "ETag: \"a\"\r\n", "bait"));
    let to = other.address.clone();
    let server = Fake::start(move |_, _| {
        whole("307 Temporary Redirect", &format!("Location: http://{to}/bucket/a\r\n"), "")
    });
    let error = server.store().read("a").unwrap_err().to_string();
    assert!(error.contains("it redirects to another server, which gets no credentials"), "{error}");
    assert!(other.requests().is_empty());
    // A valid region in the answer is used for the next signature, at the same server; an invalid one is not.
    let moved = Fake::start(|request, _| {
        if request.head.contains("/eu-west-1/s3/") {
            whole(OK, "ETag: \"a\"\r\n", "here")
        } else {
            whole("400 Bad Request", "x-amz-bucket-region: eu-west-1\r\n", "")
        }
    });
    let store = moved.store();
    assert_eq!(store.read("a").unwrap().unwrap().0, b"here");
    assert_eq!(store.read("a").unwrap().unwrap().0, b"here");
    assert_eq!(moved.requests().len(), 3);
    for region in ["eu.evil.example", "eu/../x", "EU", ""] {
        let lies = Fake::start(move |_, _| {
            whole("301 Moved", &format!("x-amz-bucket-region: {region}\r\n"), "")
        });
        assert!(lies.store().read("a").is_err());
        assert_eq!(lies.requests().len(), 1, "{region}");
    }
}

#[test]
fn writes_are_conditional_on_the_version_read() {
    let write =
        |fake: &Fake, since: &Precondition| fake.store().write("a", b"mine", since, Secrecy::Open);
    let fresh = Fake::start(|request, _| match request.method.as_str() {
        "PUT" => whole(OK, "ETag: \"1\"\r\n", ""),
        _ => absent(request),
    });
    let version = write(&fresh, &Precondition::Absent).unwrap();
    assert!(fresh.requests()[1].head.to_lowercase().contains("if-none-match: *"));
    let held = Fake::start(|request, _| match request.method.as_str() {
        "PUT" => problem("412 Precondition Failed", "PreconditionFailed"),
        _ => whole(OK, "ETag: \"1\"\r\n", ""),
    });
    let lost = write(&held, &Precondition::Read(version.clone()));
    assert!(matches!(lost, Err(Error::Conflict { .. })));
    assert!(held.requests()[1].head.to_lowercase().contains("if-match: \"1\""));
    // A server that ignores conditions gets no request that would overwrite another version.
    let lax = Fake::start(|_, _| whole(OK, "ETag: \"2\"\r\n", ""));
    assert!(matches!(write(&lax, &Precondition::Absent), Err(Error::Conflict { .. })));
    assert!(matches!(
        write(&lax, &Precondition::Read(version.clone())),
        Err(Error::Conflict { .. })
    ));
    assert!(matches!(lax.store().remove("a", &version), Err(Error::Conflict { .. })));
    assert!(lax.requests().iter().all(|request| request.method == "HEAD"));
    // The object to be changed has vanished.
    let vanished = Fake::start(|request, _| match request.method.as_str() {
        "HEAD" => whole(OK, "ETag: \"1\"\r\n", ""),
        _ => problem(GONE, "NoSuchKey"),
    });
    assert!(matches!(write(&vanished, &Precondition::Read(version)), Err(Error::Conflict { .. })));
}

#[test]
fn recognises_own_write_after_lost_answer() {
    let of = |there: &'static str| {
        Fake::start(move |request, before| match (request.method.as_str(), before) {
            ("HEAD", _) => whole(GONE, "", ""),
            // The object is written, and the answer is lost.
            ("PUT", 1) => Reply::Bytes(Vec::new()),
            ("PUT", _) => problem("412 Precondition Failed", "PreconditionFailed"),
            _ => whole(OK, "ETag: \"9\"\r\n", there),
        })
    };
    let write =
        |fake: &Fake| fake.store().write("a", b"mine", &Precondition::Absent, Secrecy::Open);
    write(&of("mine")).unwrap();
    assert!(matches!(write(&of("their")), Err(Error::Conflict { .. })));
}

#[test]
fn listings_follow_pages_and_end() {
    let page = |inner: &str, next: Option<usize>| {
        let more = next.map_or("<IsTruncated>false</IsTruncated>".to_owned(), |next| {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>t {next}</NextContinuationToken>")
        });
        whole(OK, "", &format!("<ListBucketResult>{more}{inner}</ListBucketResult>"))
    };
    let key = |key: &str| format!("<Contents><Key>{key}</Key></Contents>");
    let two = Fake::start(move |_, before| match before {
        0 => page(&[key("pre/fix/a/1"), key("pre/fix/a/")].concat(), Some(1)),
        // A key outside the prefix, one that leads out, and one that is not a name.
        _ => page(
            &["pre/fix/a/2", "other/a", "pre/fix/a/../b", "pre/fix/a//c"].map(key).concat(),
            None,
        ),
    });
    assert_eq!(two.store().list("a").unwrap(), ["a/1", "a/2"]);
    let requests = two.requests();
    assert!(requests[0].path.contains("prefix=pre%2Ffix%2Fa%2F"), "{}", requests[0].path);
    assert!(requests[1].path.contains("continuation-token=t%201"), "{}", requests[1].path);
    let directories = Fake::start(move |_, _| {
        let inner = "<CommonPrefixes><Prefix>pre/fix/a/d/</Prefix></CommonPrefixes>";
        page(&format!("{}{inner}", key("pre/fix/a/e")), None)
    });
    let entries = directories.store().entries("a").unwrap();
    assert_eq!(entries, [("d".to_owned(), true), ("e".to_owned(), false)]);
    assert!(directories.requests()[0].path.contains("delimiter=%2F"));
    let circle = Fake::start(move |_, _| page("", Some(1)));
    let error = circle.store().list("a").unwrap_err().to_string();
    assert!(error.contains("listing \"a\"") && error.contains("it repeats a page"), "{error}");
    assert_eq!(circle.requests().len(), 2);
    let endless = Fake::start(move |_, before| page("", Some(before)));
    assert!(matches!(endless.store().list("a"), Err(Error::TooMuch { .. })));
    let cut = Fake::start(|_, _| whole(OK, "", "<ListBucketResult><Contents><Key>pre/fix/a/1</K"));
    assert!(cut.store().list("a").unwrap_err().to_string().contains("is truncated"));
}

#[test]
fn listing_recognizes_content_by_its_sum() {
    // The MD5 sum of "content", the sum of an upload in parts, and the sum of other content of this length.
    let listed = |tag: &str| {
        let entry = format!("<Contents><Key>pre/fix/a/1</Key>{tag}<Size>7</Size></Contents>");
        let body = format!("<ListBucketResult>{entry}</ListBucketResult>");
        let fake = Fake::start(move |_, _| whole(OK, "", &body));
        fake.store().describe("a").unwrap().remove(0)
    };
    let own = listed("<ETag>&quot;9a0364b9e99bb480dd25e1f0284c8555&quot;</ETag>");
    assert!(own.has_content(b"content"));
    assert!(!own.has_content(b"CONTENT") && !own.has_content(b"content "));
    for tag in ["", "<ETag/>", "<ETag>&quot;9a0364b9e99bb480dd25e1f0284c8555-2&quot;</ETag>"] {
        assert!(!listed(tag).has_content(b"content"), "{tag}");
    }
}

#[test]
fn waiting_for_a_server_blocks_no_other_task() {
    let (go, waits) = std::sync::mpsc::channel();
    let slow = Fake::start(move |_, _| match waits.recv_timeout(Duration::from_secs(20)) {
        Ok(()) => whole(OK, "ETag: \"a\"\r\n", "content"),
        Err(_) => problem("403 Forbidden", "AccessDenied"),
    });
    let store = slow.store();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let read = runtime.block_on(async {
        let read = tokio::spawn(async move { store.read("a") });
        // The runtime's only thread reads; the server answers once another task has run.
        let other = tokio::spawn(async move { go.send(()) });
        other.await.unwrap().unwrap();
        read.await.unwrap()
    });
    assert_eq!(read.unwrap().unwrap().0, b"content");
}

#[test]
fn errors_name_the_server_but_no_keys() {
    let address = Fake::start(|_, _| Reply::Bytes(Vec::new())).address.clone();
    let store = open(&address, "s3://bucket").unwrap();
    let error = store.read("a").unwrap_err().to_string();
    assert!(error.contains(&address) && !error.contains("hidden"), "{error}");
    assert!(!format!("{store:?}").contains("hidden"));
}
