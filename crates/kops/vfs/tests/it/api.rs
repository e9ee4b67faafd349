//! Tests of a served store, with permitted, forbidden and hostile requests.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use vfs::{AccessKey, Api, Error, Precondition, Secrecy, Store};

use crate::store::count_up;

struct TestServer {
    dir: tempfile::TempDir,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

fn right(id: &str, prefix: &str, writes: Option<&str>) -> AccessKey {
    let (id, writes) = (id.to_owned(), writes.map(str::to_owned));
    AccessKey { secret: format!("{id}-secret"), id, prefix: prefix.to_owned(), writes }
}

impl TestServer {
    fn start() -> Self {
        let (dir, store) = crate::store();
        let rights = vec![
            right("all", "", Some("")),
            right("a", "a.local/", Some("a.local/backups/")),
            right("reader", "", None),
        ];
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap_or_else(|e| panic!("{e}"));
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}"));
        let api = Arc::new(Api::new(store, "bucket", rights));
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let own = tasks.clone();
        runtime.block_on(async move {
            tasks.spawn("api", async move {
                serve::serve(listener, None, serve::Limits::default(), api, own).await;
            });
        });
        Self { dir, address, runtime: Some(runtime) }
    }

    /// Opens the store with an access key.
    fn by(&self, id: &str, secret: &str, url: &str) -> Store {
        let endpoint = format!("http://{}", self.address);
        let store = Store::open_in(url, &|name| {
            Some(match name {
                "S3_ENDPOINT" => endpoint.clone(),
                "S3_ACCESS_KEY_ID" => id.to_owned(),
                "S3_SECRET_ACCESS_KEY" => secret.to_owned(),
                _ => return None,
            })
        });
        store.unwrap_or_else(|e| panic!("{e}"))
    }

    fn all(&self) -> Store {
        self.by("all", "all-secret", "s3://bucket")
    }

    fn say(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap_or_else(|e| panic!("{e}"));
        stream.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[test]
fn served_store_behaves_like_a_directory() {
    let served = TestServer::start();
    let store = served.all();
    let write = |name: &str, content: &str, since: &Precondition| {
        store.write(name, content.as_bytes(), since, Secrecy::Open)
    };
    assert!(store.read("a.local/config").unwrap().is_none());
    let first = write("a.local/config", "one", &Precondition::Absent).unwrap();
    assert!(matches!(
        write("a.local/config", "two", &Precondition::Absent),
        Err(Error::Conflict { .. })
    ));
    let second = write("a.local/config", "two", &Precondition::Read(first.clone())).unwrap();
    let lost = write("a.local/config", "three", &Precondition::Read(first.clone()));
    assert!(matches!(lost, Err(Error::Conflict { .. })));
    assert!(matches!(store.remove("a.local/config", &first), Err(Error::Conflict { .. })));
    let (content, version) = store.read("a.local/config").unwrap().unwrap();
    assert_eq!((&content[..], &version), (&b"two"[..], &second));
    write("a.local/pki/a b+c&d%", "x", &Precondition::Absent).unwrap();
    write("b.local/config", "x", &Precondition::Absent).unwrap();
    assert_eq!(
        store.list("").unwrap(),
        ["a.local/config", "a.local/pki/a b+c&d%", "b.local/config"]
    );
    let entries = store.entries("a.local").unwrap();
    assert_eq!(entries, [("config".to_owned(), false), ("pki".to_owned(), true)]);
    assert_eq!(store.describe("b.local").unwrap()[0].size, 1);
    assert!(store.list("none").unwrap().is_empty());
    store.remove("a.local/config", &second).unwrap();
    assert!(store.read("a.local/config").unwrap().is_none());
    store.discard("a.local/pki/a b+c&d%").unwrap();
    assert_eq!(store.list("").unwrap(), ["b.local/config"]);
    // Private keys in the directory are readable by their owner only.
    use std::os::unix::fs::PermissionsExt as _;
    let file = served.dir.path().join("state/b.local/config");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn serves_paged_listings_and_large_objects() {
    let served = TestServer::start();
    let (dir, plain) = crate::store();
    drop(plain);
    let names: Vec<String> = (0..2500).map(|n| format!("d/{n:05}/x")).collect();
    let below = served.dir.path().join("state");
    for name in &names {
        std::fs::create_dir_all(below.join(name).parent().unwrap()).unwrap();
        std::fs::write(below.join(name), "x").unwrap();
    }
    let store = served.all();
    assert_eq!(store.list("d").unwrap(), names);
    assert_eq!(store.entries("d").unwrap().len(), 2500);
    let (own, copy) = (dir.path().join("own"), dir.path().join("copy"));
    let content: Vec<u8> = (0..(16 << 20) + 5).map(|n: u32| n as u8).collect();
    std::fs::write(&own, &content).unwrap();
    store.keep("a/large", &own).unwrap();
    assert!(matches!(store.keep("a/large", &own), Err(Error::Conflict { .. })));
    assert!(matches!(store.read("a/large"), Err(Error::TooMuch { .. })));
    assert!(store.fetch("a/large", &copy).unwrap().is_some());
    assert!(std::fs::read(&copy).unwrap() == content);
    assert!(store.fetch("a/none", &dir.path().join("none")).unwrap().is_none());
}

#[test]
fn concurrent_writes_lose_no_update() {
    let served = TestServer::start();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| count_up(&served.all(), 10));
        }
    });
    assert_eq!(served.all().read("count").unwrap().unwrap().0, b"30");
}

#[test]
fn rejects_requests_without_rights() {
    let served = TestServer::start();
    let all = served.all();
    for name in ["a.local/config", "a.local.evil/key", "b.local/pki/private/ca"] {
        all.write(name, b"secret", &Precondition::Absent, Secrecy::Private).unwrap();
    }
    let says = |store: &Store, reason: &str| {
        let (_, version) = all.read("b.local/pki/private/ca").unwrap().unwrap();
        for done in [
            store.read("b.local/pki/private/ca").map(drop),
            store.read("b.local/none").map(drop),
            store.list("b.local").map(drop),
            store.list("").map(drop),
            store.entries("").map(drop),
            store.write("b.local/new", b"x", &Precondition::Absent, Secrecy::Open).map(drop),
            store.discard("b.local/pki/private/ca"),
            store.remove("b.local/pki/private/ca", &version),
            store.read("a.local.evil/key").map(drop),
        ] {
            let error = done.unwrap_err().to_string();
            assert!(error.contains(reason) || error.contains("403"), "{error}");
            assert!(!error.contains("-secret"), "{error}");
        }
        assert_eq!(all.list("").unwrap().len(), 3);
    };
    says(&served.by("a", "wrong", "s3://bucket"), "SignatureDoesNotMatch");
    // A forged request is rejected even for the key's own objects.
    let forged = served.by("a", "wrong", "s3://bucket");
    for done in [
        forged.read("a.local/config").map(drop),
        forged.list("a.local").map(drop),
        forged.entries("a.local").map(drop),
    ] {
        let error = done.unwrap_err().to_string();
        assert!(error.contains("SignatureDoesNotMatch"), "{error}");
    }
    assert!(forged.write("a.local/backups/x", b"x", &Precondition::Absent, Secrecy::Open).is_err());
    assert_eq!(all.list("a.local/backups").unwrap(), [""; 0]);
    says(&served.by("nobody", "x", "s3://bucket"), "InvalidAccessKeyId");
    // A key of one cluster reaches only that cluster.
    let own = served.by("a", "a-secret", "s3://bucket");
    says(&own, "AccessDenied");
    assert_eq!(own.list("a.local").unwrap(), ["a.local/config"]);
    let write = |name| own.write(name, b"x", &Precondition::Absent, Secrecy::Open);
    write("a.local/backups/new").unwrap();
    assert!(write("a.local/new").unwrap_err().to_string().contains("AccessDenied"));
    assert!(own.discard("a.local/config").is_err());
    all.discard("a.local/backups/new").unwrap();
    assert!(
        served
            .by("all", "all-secret", "s3://other")
            .read("a")
            .unwrap_err()
            .to_string()
            .contains("NoSuchBucket")
    );
    let reader = served.by("reader", "reader-secret", "s3://bucket");
    assert!(reader.read("b.local/pki/private/ca").unwrap().is_some());
    assert!(
        reader
            .write("x", b"x", &Precondition::Absent, Secrecy::Open)
            .unwrap_err()
            .to_string()
            .contains("403")
    );
    assert!(reader.discard("a.local/config").is_err());
}

#[test]
fn rejects_hostile_requests() {
    let served = TestServer::start();
    served.all().write("a", b"secret", &Precondition::Absent, Secrecy::Open).unwrap();
    let scope = "Credential=all/20260101/us-east-1/s3/aws4_request";
    let zeros = "0".repeat(64);
    let empty = "AWS4-HMAC-SHA256 Credential=,SignedHeaders=,Signature=";
    let whole =
        format!("AWS4-HMAC-SHA256 {scope}, SignedHeaders=host;x-amz-date, Signature={zeros}");
    for (first, authorization) in [
        ("GET /bucket/a", ""),
        ("GET /bucket/a", "Bearer x"),
        ("GET /bucket/a", "AWS4-HMAC-SHA256"),
        ("GET /bucket/a", empty),
        ("GET /bucket/a", &whole),
        ("GET /bucket/a", &whole.replace("host;", "")),
        ("GET /bucket/a", &whole.replace("20260101/", "")),
        ("GET /bucket/a", &whole.replace("Signature=0", "Signature=zz")),
        ("GET /bucket/%zz", &whole),
        ("GET /bucket/%ff%fe", &whole),
        ("GET /bucket/../../../etc/passwd", &whole),
        ("GET /bucket/a?X-Amz-Signature=0&X-Amz-Credential=all", ""),
        ("POST /bucket/?delete", &whole),
        ("PUT /bucket/b", &whole),
        ("DELETE /bucket/a", ""),
        (&format!("GET /bucket?{}", "a=b&".repeat(100)), &whole),
    ] {
        let answer = served.say(&format!(
            "{first} HTTP/1.1\r\nHost: x\r\nx-amz-date: 20260101T000000Z\r\nAuthorization: {authorization}\r\nContent-Length: 0\r\n\r\n"
        ));
        let code: u16 = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        assert!((400..500).contains(&code), "{first} {authorization}: {answer}");
        assert!(!answer.contains("secret"), "{answer}");
    }
    assert_eq!(served.all().list("").unwrap(), ["a"]);
    // Names that lead out of the store are invalid, even with all rights.
    assert!(matches!(served.all().read("../x"), Err(Error::Name { .. })));
}
