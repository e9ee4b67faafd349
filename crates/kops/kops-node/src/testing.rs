//! A real etcd on loopback for tests, with a plain and an encrypted client address. It is killed on drop.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap::etcd::Etcd;
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

use crate::etcd_client;

const START: Duration = Duration::from_secs(60);

/// Reports whether an etcd program is installed, and prints a note if not.
pub(crate) fn is_installed() -> bool {
    let ran = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !ran {
        println!("skipped: no etcd in PATH (Debian: apt-get install etcd-server)");
    }
    ran
}

/// Returns the error in an answer of etcd: `error` of etcd 3.4, `message` of 3.5 and newer.
pub(crate) fn error(answer: &Value) -> &str {
    [answer.text("error"), answer.text("message")].into_iter().find(|e| !e.is_empty()).unwrap_or("")
}

/// A member's name, peer URL and data directory.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) peer: String,
    pub(crate) data: PathBuf,
}

impl Site {
    pub(crate) fn new(name: &str, data: &Path) -> Self {
        let peer = format!("http://127.0.0.1:{}", testkit::free_port());
        Self { name: name.to_owned(), peer, data: data.to_owned() }
    }
}

/// A running member.
pub(crate) struct RealEtcd {
    child: Child,
    port: u16,
    encrypted: u16,
    log: PathBuf,
    authority: Authority,
    // The log and the server's keys.
    _directory: tempfile::TempDir,
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RealEtcd {
    /// Starts a member of a cluster, without waiting for it.
    pub(crate) fn spawn(site: &Site, cluster: &[Site]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(86_400);
        let validity = Validity::starting(rt::now(), day);
        let authority = Authority::create("etcd-ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let serving = LeafSpec {
            subject: Subject::new("etcd"),
            alt_names: vec![AltName::Ip("127.0.0.1".parse().unwrap())],
            usage: Usage::ServerAndClient,
        };
        let issued = authority.issue_new(&serving, KeyAlgorithm::EcdsaP256, validity).unwrap();
        let (crt, key) = (directory.path().join("etcd.crt"), directory.path().join("etcd.key"));
        pki::write_cert(&crt, &issued.0).unwrap();
        pki::write_key(&key, &issued.1).unwrap();
        let log = directory.path().join("log");
        let (port, encrypted) = (testkit::free_port(), testkit::free_port());
        let clients = format!("http://127.0.0.1:{port},https://127.0.0.1:{encrypted}");
        let all: Vec<_> = cluster.iter().map(|s| format!("{}={}", s.name, s.peer)).collect();
        let child = Command::new("etcd")
            .args(["--name", &site.name, "--data-dir"])
            .arg(&site.data)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &site.peer, "--initial-advertise-peer-urls", &site.peer])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .args(["--initial-cluster-token", "etcd-cluster-token-main"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .arg("--cert-file")
            .arg(&crt)
            .arg("--key-file")
            .arg(&key)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, port, encrypted, log, authority, _directory: directory }
    }

    /// Starts a single member and waits until it answers.
    pub(crate) async fn start(site: &Site) -> Self {
        let etcd = Self::spawn(site, std::slice::from_ref(site));
        etcd.wait().await;
        etcd
    }

    /// Waits until the member answers reads, which need a quorum.
    pub(crate) async fn wait(&self) {
        let read = json!({"key": STANDARD.encode("a")});
        let answers = || self.try_call("/v3/kv/range", &read).is_some();
        if !rt::wait_until(START, Duration::from_millis(50), answers).await {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            panic!("etcd does not answer:\n{log}");
        }
    }

    fn try_call(&self, path: &str, body: &Value) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let body = body.to_string();
        // A response to HTTP/1.0 has no chunks and ends with the connection.
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok()?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).ok()?;
        let at = response.windows(4).position(|window| window == b"\r\n\r\n")?;
        let answer: Value = serde_json::from_slice(&response[at + 4..]).ok()?;
        let error = error(&answer);
        let is_ok = response.starts_with(b"HTTP/1.0 200") || !error.is_empty();
        let answers = is_ok && !error.contains("no leader");
        answers.then_some(answer)
    }

    /// Calls etcd, which must answer.
    pub(crate) fn call(&self, path: &str, body: &Value) -> Value {
        self.try_call(path, body).unwrap_or_else(|| panic!("no answer of etcd to {path} {body}"))
    }

    pub(crate) fn put(&self, key: &str, value: &str) -> u64 {
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        revision(&self.call("/v3/kv/put", &body))
    }

    pub(crate) fn delete(&self, key: &str) -> u64 {
        revision(&self.call("/v3/kv/deleterange", &json!({"key": STANDARD.encode(key)})))
    }

    /// Returns a key's value.
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let answer = self.call("/v3/kv/range", &json!({"key": STANDARD.encode(key)}));
        let value = STANDARD.decode(answer.items("kvs").first()?.text("value")).unwrap();
        Some(String::from_utf8(value).unwrap())
    }

    /// Returns the newest revision and all keys with their values.
    pub(crate) fn all(&self) -> (u64, Vec<(String, String)>) {
        let zero = STANDARD.encode([0]);
        let answer = self.call("/v3/kv/range", &json!({"key": zero, "range_end": zero}));
        let text = |kv: &Value, field| {
            String::from_utf8(STANDARD.decode(kv.text(field)).unwrap()).unwrap()
        };
        let pairs = answer.items("kvs").iter().map(|kv| (text(kv, "key"), text(kv, "value")));
        (revision(&answer), pairs.collect())
    }

    /// Returns the client that protokube uses.
    pub(crate) fn client(&self) -> Etcd {
        let url = format!("https://127.0.0.1:{}", self.encrypted);
        etcd_client(&[url], "protokube", &self.authority, &self.authority.cert().to_pem()).unwrap()
    }
}

fn revision(answer: &Value) -> u64 {
    answer.text("header.revision").parse().unwrap_or_else(|_| panic!("no revision: {answer}"))
}
