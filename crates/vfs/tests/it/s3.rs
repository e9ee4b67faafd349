//! What a server of S3 may do to a store, by one that does it.

use std::time::Duration;

use vfs::{Error, Secrecy, Since};

use crate::fake::{Asked, Fake, Said, open, problem, whole};

const GONE: &str = "404 Not Found";
const OK: &str = "200 OK";

fn absent(asked: &Asked) -> Said {
    // An answer to HEAD has no body.
    if asked.method == "HEAD" { whole(GONE, "", "") } else { problem(GONE, "NoSuchKey") }
}

#[test]
fn a_passing_failure_is_tried_again_and_others_are_told() {
    let busy = Fake::start(|_, before| match before {
        0 => problem("503 Slow Down", "SlowDown"),
        1 => Said::Bytes(Vec::new()),
        2 => {
            Said::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: \"a\"\r\n\r\ncut".to_vec())
        }
        _ => whole(OK, "ETag: \"a\"\r\n", "content"),
    });
    assert_eq!(busy.store().read("a/config").unwrap().unwrap().0, b"content");
    assert_eq!(busy.asked().len(), 4);
    for request in busy.asked() {
        assert_eq!(request.path, "/bucket/pre/fix/a/config");
        let head = request.head.to_lowercase();
        assert!(head.contains("authorization: aws4-hmac-sha256 credential=key/"), "{head}");
        assert!(head.contains("/us-east-1/s3/aws4_request") && !head.contains("hidden"), "{head}");
    }
    let wrong = Fake::start(|_, _| problem("403 Forbidden", "SignatureDoesNotMatch"));
    let error = wrong.store().read("a").unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch: said so; check the credentials"), "{error}");
    assert_eq!(wrong.asked().len(), 1);
    let gone = Fake::start(|_, _| problem(GONE, "NoSuchBucket"));
    assert!(gone.store().read("a").unwrap_err().to_string().contains("NoSuchBucket"));
    assert!(Fake::start(|asked, _| absent(asked)).store().read("a").unwrap().is_none());
}

#[test]
fn what_has_no_end_or_no_length_is_not_read() {
    let head = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\n";
    let chunked = Fake::start(move |_, _| {
        let head = format!("{head}Transfer-Encoding: chunked\r\n\r\nfffffffffff\r\n");
        Said::Endless(head.into_bytes())
    });
    assert!(matches!(chunked.store().read("a"), Err(Error::TooMuch { .. })));
    let long = Fake::start(move |_, _| {
        Said::Endless(format!("{head}Content-Length: 99999999999999\r\n\r\n").into_bytes())
    });
    assert!(matches!(long.store().read("a"), Err(Error::TooMuch { .. })));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("copy");
    assert!(matches!(long.store().fetch("a", &to), Err(Error::TooMuch { .. })));
    assert!(!to.exists());
    assert!(matches!(long.store().list("a"), Err(Error::TooMuch { .. })));
    // Of an answer that ends with its connection nobody knows whether it is whole.
    let cut = Fake::start(move |_, _| {
        Said::Bytes(format!("{head}Connection: close\r\n\r\nhalf an obj").into_bytes())
    });
    assert!(cut.store().read("a").unwrap_err().to_string().contains("was cut"));
    assert!(cut.store().fetch("a", &to).is_err() && !to.exists());
    let errors = Fake::start(|_, _| {
        Said::Endless(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 99999999999\r\n\r\n".to_vec())
    });
    assert!(errors.store().read("a").is_err());
}

#[test]
fn credentials_are_not_shown_elsewhere() {
    let other = Fake::start(|_, _| whole(OK, "ETag: \"a\"\r\n", "bait"));
    let to = other.address.clone();
    let server = Fake::start(move |_, _| {
        whole("307 Temporary Redirect", &format!("Location: http://{to}/bucket/a\r\n"), "")
    });
    let error = server.store().read("a").unwrap_err().to_string();
    assert!(error.contains("it is elsewhere, where credentials are not shown"), "{error}");
    assert!(other.asked().is_empty());
    // A region that is told is signed for, at the same server; what is none is not.
    let moved = Fake::start(|asked, _| match asked.head.contains("/eu-west-1/s3/") {
        true => whole(OK, "ETag: \"a\"\r\n", "here"),
        false => whole("400 Bad Request", "x-amz-bucket-region: eu-west-1\r\n", ""),
    });
    let store = moved.store();
    assert_eq!(store.read("a").unwrap().unwrap().0, b"here");
    assert_eq!(store.read("a").unwrap().unwrap().0, b"here");
    assert_eq!(moved.asked().len(), 3);
    for region in ["eu.evil.example", "eu/../x", "EU", ""] {
        let lies = Fake::start(move |_, _| {
            whole("301 Moved", &format!("x-amz-bucket-region: {region}\r\n"), "")
        });
        assert!(lies.store().read("a").is_err());
        assert_eq!(lies.asked().len(), 1, "{region}");
    }
}

#[test]
fn a_write_says_what_it_was_made_from_and_is_not_taken_for_anothers() {
    let write = |fake: &Fake, since: &Since| fake.store().write("a", b"mine", since, Secrecy::Open);
    let fresh = Fake::start(|asked, _| match asked.method.as_str() {
        "PUT" => whole(OK, "ETag: \"1\"\r\n", ""),
        _ => absent(asked),
    });
    let version = write(&fresh, &Since::Absent).unwrap();
    assert!(fresh.asked()[1].head.to_lowercase().contains("if-none-match: *"));
    let held = Fake::start(|asked, _| match asked.method.as_str() {
        "PUT" => problem("412 Precondition Failed", "PreconditionFailed"),
        _ => whole(OK, "ETag: \"1\"\r\n", ""),
    });
    let lost = write(&held, &Since::Read(version.clone()));
    assert!(matches!(lost, Err(Error::Conflict { .. })));
    assert!(held.asked()[1].head.to_lowercase().contains("if-match: \"1\""));
    // One that passes over conditions is not asked to write over what is another.
    let lax = Fake::start(|_, _| whole(OK, "ETag: \"2\"\r\n", ""));
    assert!(matches!(write(&lax, &Since::Absent), Err(Error::Conflict { .. })));
    assert!(matches!(write(&lax, &Since::Read(version.clone())), Err(Error::Conflict { .. })));
    assert!(matches!(lax.store().remove("a", &version), Err(Error::Conflict { .. })));
    assert!(lax.asked().iter().all(|asked| asked.method == "HEAD"));
    // What is to be changed has vanished.
    let vanished = Fake::start(|asked, _| match asked.method.as_str() {
        "HEAD" => whole(OK, "ETag: \"1\"\r\n", ""),
        _ => problem(GONE, "NoSuchKey"),
    });
    assert!(matches!(write(&vanished, &Since::Read(version)), Err(Error::Conflict { .. })));
}

#[test]
fn a_write_whose_answer_was_lost_is_known_by_what_is_there() {
    let of = |there: &'static str| {
        Fake::start(move |asked, before| match (asked.method.as_str(), before) {
            ("HEAD", _) => whole(GONE, "", ""),
            // Written, and the answer is lost.
            ("PUT", 1) => Said::Bytes(Vec::new()),
            ("PUT", _) => problem("412 Precondition Failed", "PreconditionFailed"),
            _ => whole(OK, "ETag: \"9\"\r\n", there),
        })
    };
    let write = |fake: &Fake| fake.store().write("a", b"mine", &Since::Absent, Secrecy::Open);
    write(&of("mine")).unwrap();
    assert!(matches!(write(&of("their")), Err(Error::Conflict { .. })));
}

#[test]
fn listings_go_on_and_end() {
    let page = |inner: &str, next: Option<usize>| {
        let more = next.map_or("<IsTruncated>false</IsTruncated>".to_owned(), |next| {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>t {next}</NextContinuationToken>")
        });
        whole(OK, "", &format!("<ListBucketResult>{more}{inner}</ListBucketResult>"))
    };
    let key = |key: &str| format!("<Contents><Key>{key}</Key></Contents>");
    let two = Fake::start(move |_, before| match before {
        0 => page(&[key("pre/fix/a/1"), key("pre/fix/a/")].concat(), Some(1)),
        // Another's, one that leads out, one that is no name.
        _ => page(
            &["pre/fix/a/2", "other/a", "pre/fix/a/../b", "pre/fix/a//c"].map(key).concat(),
            None,
        ),
    });
    assert_eq!(two.store().list("a").unwrap(), ["a/1", "a/2"]);
    let asked = two.asked();
    assert!(asked[0].path.contains("prefix=pre%2Ffix%2Fa%2F"), "{}", asked[0].path);
    assert!(asked[1].path.contains("continuation-token=t%201"), "{}", asked[1].path);
    let directories = Fake::start(move |_, _| {
        let inner = "<CommonPrefixes><Prefix>pre/fix/a/d/</Prefix></CommonPrefixes>";
        page(&format!("{}{inner}", key("pre/fix/a/e")), None)
    });
    let entries = directories.store().entries("a").unwrap();
    assert_eq!(entries, [("d".to_owned(), true), ("e".to_owned(), false)]);
    assert!(directories.asked()[0].path.contains("delimiter=%2F"));
    let circle = Fake::start(move |_, _| page("", Some(1)));
    assert!(matches!(circle.store().list("a"), Err(Error::TooMuch { .. })));
    let cut = Fake::start(|_, _| whole(OK, "", "<ListBucketResult><Contents><Key>pre/fix/a/1</K"));
    assert!(cut.store().list("a").unwrap_err().to_string().contains("was cut"));
}

#[test]
fn whoever_waits_for_a_server_holds_nobody_up() {
    let (go, waits) = std::sync::mpsc::channel();
    let slow = Fake::start(move |_, _| match waits.recv_timeout(Duration::from_secs(20)) {
        Ok(()) => whole(OK, "ETag: \"a\"\r\n", "content"),
        Err(_) => problem("403 Forbidden", "AccessDenied"),
    });
    let store = slow.store();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let read = runtime.block_on(async {
        let read = tokio::spawn(async move { store.read("a") });
        // The one thread that there is for tasks reads; the server answers when another task has run.
        let other = tokio::spawn(async move { go.send(()) });
        other.await.unwrap().unwrap();
        read.await.unwrap()
    });
    assert_eq!(read.unwrap().unwrap().0, b"content");
}

#[test]
fn a_server_that_is_not_there_is_named_and_keys_are_not() {
    let address = Fake::start(|_, _| Said::Bytes(Vec::new())).address.clone();
    let store = open(&address, "s3://bucket").unwrap();
    let error = store.read("a").unwrap_err().to_string();
    assert!(error.contains(&address) && !error.contains("hidden"), "{error}");
    assert!(!format!("{store:?}").contains("hidden"));
}
