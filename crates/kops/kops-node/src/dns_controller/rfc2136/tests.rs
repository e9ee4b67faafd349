//! Tests of updates against a scripted server, and against BIND if it is installed.

use std::{
    fs,
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
};

use hickory_proto::rr::rdata::TXT;
use kops_core::dns::Records;

use super::*;
use crate::dns_controller::tests::{change, records};

const ZONE: &str = "example.test";
const KEY: &str = "key \"k\" { algorithm hmac-sha256; secret \"c2VjcmV0c2VjcmV0\"; };\n";

fn zone() -> Zone {
    Zone::new(ZONE, ZONE).unwrap()
}

fn provider(port: u16, key_file: Option<PathBuf>) -> Rfc2136 {
    let limits = TimeLimits { udp: Duration::from_millis(300), tcp: Duration::from_secs(10) };
    Rfc2136 { server: format!("127.0.0.1:{port}"), key_file, zones: vec![zone()], limits }
}

fn one() -> Vec<Change> {
    vec![change("a.example.test", records(&["192.0.2.1"], &[], None))]
}

/// A server with scripted answers: to the first requests by UDP, and to one request by TCP.
struct Scripted {
    port: u16,
    done: tokio::task::JoinHandle<Vec<Vec<u8>>>,
}

/// Makes the answers to a request.
type Script = fn(&[u8]) -> Vec<Vec<u8>>;

impl Scripted {
    async fn start(udp: Vec<Script>, tcp: Option<Script>) -> Self {
        let (listener, socket, port) = loop {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)).await {
                break (listener, socket, port);
            }
        };
        let done = tokio::spawn(async move {
            let mut requests = Vec::new();
            for script in udp {
                let mut buffer = vec![0; 65_535];
                let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
                for answer in script(&buffer[..length]) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
                requests.push(buffer[..length].to_vec());
            }
            if let Some(script) = tcp {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut request).await.unwrap();
                for answer in script(&request) {
                    let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                    stream.write_all(&[&length[..], &answer].concat()).await.unwrap();
                }
                requests.push(request);
            }
            requests
        });
        Self { port, done }
    }
}

/// Returns the answer to a request, with a code.
fn answer(request: &[u8], code: ResponseCode) -> Vec<u8> {
    let request = Message::from_vec(request).unwrap();
    let mut answer = Message::response(request.metadata.id, OpCode::Update);
    answer.metadata.response_code = code;
    answer.to_vec().unwrap()
}

fn succeeds(request: &[u8]) -> Vec<Vec<u8>> {
    vec![answer(request, ResponseCode::NoError)]
}

/// Returns answers that belong to other requests or are damaged.
fn nonsense(request: &[u8]) -> Vec<Vec<u8>> {
    let good = answer(request, ResponseCode::NoError);
    let mut other_id = good.clone();
    other_id[0] ^= 0xff;
    let mut query = good.clone();
    query[2] &= 0x7f;
    let mut other_operation = good.clone();
    other_operation[2] &= 0x87;
    vec![Vec::new(), good[..11].to_vec(), vec![0xff; 600], other_id, query, other_operation]
}

#[tokio::test]
async fn ignores_answers_of_others_by_udp() {
    let mixed: Script = |request| [nonsense(request), succeeds(request)].concat();
    let server = Scripted::start(vec![mixed], None).await;
    provider(server.port, None).apply(&zone(), &one()).await.unwrap();
    let requests = server.done.await.unwrap();
    let update = Message::from_vec(&requests[0]).unwrap();
    assert_eq!(update.metadata.op_code, OpCode::Update);
    assert_eq!(update.queries[0].name().to_ascii(), "example.test.");
    // Three deletions of types, and one record.
    assert_eq!(update.authorities.len(), 4);
    assert_eq!(update.authorities[3].ttl, 60);
    assert!(!requests[0].windows(8).any(|bytes| bytes == b"c2VjcmV0"));
}

#[tokio::test]
async fn repeats_lost_requests_and_then_uses_tcp() {
    let lost: Script = |_| vec![];
    let server = Scripted::start(vec![lost, succeeds], None).await;
    provider(server.port, None).apply(&zone(), &one()).await.unwrap();
    let requests = server.done.await.unwrap();
    assert_eq!(requests[0], requests[1]);
    let server = Scripted::start(vec![lost, lost], Some(succeeds)).await;
    provider(server.port, None).apply(&zone(), &one()).await.unwrap();
    // An answer by UDP that is truncated or nonsense leaves the decision to TCP.
    let truncated: Script = |request| {
        let mut answer = answer(request, ResponseCode::NoError);
        answer[2] |= 0x02;
        vec![answer]
    };
    for script in [truncated, nonsense] {
        let server = Scripted::start(vec![script], Some(succeeds)).await;
        provider(server.port, None).apply(&zone(), &one()).await.unwrap();
    }
}

#[tokio::test]
async fn large_updates_use_tcp() {
    let many: Vec<_> = (0..20)
        .map(|n| {
            let ips: Vec<_> = (0..10).map(|host| format!("10.0.{n}.{host}")).collect();
            let ips: Vec<_> = ips.iter().map(String::as_str).collect();
            change(&format!("{}{n}.example.test", "x".repeat(60)), records(&ips, &[], None))
        })
        .collect();
    let server = Scripted::start(vec![], Some(succeeds)).await;
    provider(server.port, None).apply(&zone(), &many).await.unwrap();
    let requests = server.done.await.unwrap();
    assert!(requests[0].len() > LONGEST_UDP && requests[0].len() < 16_000);
}

#[tokio::test]
async fn reports_refusals_and_bad_answers() {
    let refused: Script = |request| vec![answer(request, ResponseCode::Refused)];
    let not_zone: Script = |request| vec![answer(request, ResponseCode::NotZone)];
    let failed: Script = |request| vec![answer(request, ResponseCode::ServFail)];
    for (script, effect, text) in [
        (refused, Effect::Refused, "rejected the update of zone example.test"),
        (not_zone, Effect::Rejected, "NotZone"),
        (failed, Effect::Unknown, "ServFail"),
    ] {
        let server = Scripted::start(vec![script], None).await;
        let error = provider(server.port, None).apply(&zone(), &one()).await.unwrap_err();
        assert_eq!(error.effect, effect);
        assert!(error.to_string().contains(text), "{error}");
    }
    let lost: Script = |_| vec![];
    let malformed: Script = |_| vec![vec![1, 2, 3]];
    let server = Scripted::start(vec![lost, lost], Some(malformed)).await;
    let error = provider(server.port, None).apply(&zone(), &one()).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
    assert!(error.to_string().contains("it is not a DNS message"), "{error}");
    // The server closes the connection.
    let server = Scripted::start(vec![lost, lost], Some(lost)).await;
    let error = provider(server.port, None).apply(&zone(), &one()).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
    let error = provider(1, None).apply(&zone(), &one()).await.unwrap_err();
    assert!(error.to_string().contains("check that it can be reached"), "{error}");
}

#[tokio::test]
async fn unsigned_answers_to_signed_requests_are_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("key");
    fs::write(&key_file, KEY).unwrap();
    let server = Scripted::start(vec![succeeds], Some(succeeds)).await;
    let error = provider(server.port, Some(key_file)).apply(&zone(), &one()).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
    assert!(error.to_string().contains("it is not signed"), "{error}");
    let missing = provider(server.port, Some(directory.path().join("none")));
    let error = missing.apply(&zone(), &one()).await.unwrap_err();
    assert_eq!(error.effect, Effect::Refused);
}

/// A BIND on loopback, which is killed on drop.
struct Bind {
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bind {
    /// Starts a server of the zone, which only the key may update; `None` if BIND is not installed.
    async fn start() -> Option<Self> {
        let is_installed = Command::new("named").arg("-v").stdout(Stdio::null()).status().is_ok();
        if !is_installed {
            println!("skipped: no named in PATH (Debian: apt-get install bind9)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let (path, port) = (directory.path().display().to_string(), testkit::free_port());
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("key", KEY);
        write(
            "zone",
            "$TTL 60\n@ SOA ns.example.test. admin.example.test. 1 3600 600 86400 60\n@ NS ns.example.test.\n\
             ns A 127.0.0.1\nforeign A 192.0.2.99\nb TXT kept\n",
        );
        write(
            "named.conf",
            &format!(
                "include \"{path}/key\";\noptions {{ directory \"{path}\"; listen-on port {port} {{ 127.0.0.1; }}; \
                 listen-on-v6 {{ none; }}; pid-file none; session-keyfile none; recursion no; dnssec-validation no; \
                 notify no; }};\ncontrols {{ }};\nzone \"{ZONE}\" {{ type primary; file \"zone\"; allow-update {{ key \
                 \"k\"; }}; }};\n"
            ),
        );
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new("named")
            .args(["-g", "-4", "-n", "1", "-c", &format!("{path}/named.conf")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut bind = Self { child, port, directory };
        let is_serving = || async {
            let found = bind.lookup("ns.example.test", RecordType::A).await;
            if found.is_empty() { Err(()) } else { Ok(()) }
        };
        let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(20));
        let served = rt::retry(patience, pause, |()| true, is_serving).await;
        assert!(served.is_ok(), "{}", bind.log());
        assert!(bind.child.try_wait().unwrap().is_none());
        Some(bind)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn key_file(&self) -> Option<PathBuf> {
        Some(self.directory.path().join("key"))
    }

    /// Returns the records of a name and type, sorted.
    async fn lookup(&self, name: &str, kind: RecordType) -> Vec<String> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(("127.0.0.1", self.port)).await.unwrap();
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), kind));
        let mut buffer = vec![0; 4096];
        if socket.send(&query.to_vec().unwrap()).await.is_err() {
            return Vec::new();
        }
        match timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await {
            Ok(Ok(length)) => {
                let answer = Message::from_vec(&buffer[..length]).unwrap();
                let owned = answer.answers.iter().filter(|record| record.record_type() == kind);
                let mut all: Vec<_> = owned.map(|record| record.data.to_string()).collect();
                all.sort();
                all
            }
            _ => Vec::new(),
        }
    }
}

#[tokio::test]
async fn bind_applies_signed_updates() {
    let Some(bind) = Bind::start().await else { return };
    let provider = provider(bind.port, bind.key_file());
    let both = records(&["192.0.2.1", "192.0.2.2"], &["2001:db8::1"], None);
    let first = [
        change("a.example.test", both),
        change("b.example.test", records(&["192.0.2.3"], &[], None)),
        change("*.apps.example.test", records(&[], &[], Some("a.example.test"))),
    ];
    provider.apply(&zone(), &first).await.unwrap();
    assert_eq!(bind.lookup("a.example.test", RecordType::A).await, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(bind.lookup("a.example.test", RecordType::AAAA).await, ["2001:db8::1"]);
    let host = bind.lookup("x.apps.example.test", RecordType::CNAME).await;
    assert_eq!(host, ["a.example.test."]);
    // Each name has exactly its new records. Other types and names stay.
    let second = [
        change("a.example.test", records(&["192.0.2.2"], &[], None)),
        change("b.example.test", Records::default()),
        change("*.apps.example.test", records(&["192.0.2.4"], &[], None)),
    ];
    provider.apply(&zone(), &second).await.unwrap();
    assert_eq!(bind.lookup("a.example.test", RecordType::A).await, ["192.0.2.2"]);
    assert!(bind.lookup("a.example.test", RecordType::AAAA).await.is_empty());
    assert!(bind.lookup("b.example.test", RecordType::A).await.is_empty());
    assert_eq!(
        bind.lookup("b.example.test", RecordType::TXT).await,
        [TXT::new(vec!["kept".to_owned()]).to_string()]
    );
    assert_eq!(bind.lookup("x.apps.example.test", RecordType::A).await, ["192.0.2.4"]);
    assert_eq!(bind.lookup("foreign.example.test", RecordType::A).await, ["192.0.2.99"]);
    // By TCP.
    let many: Vec<_> = (0..20_u8)
        .map(|n| {
            let ipv4 = (0..10).map(|host| Ipv4Addr::new(10, 0, n, host)).collect();
            change(&format!("m{n}.example.test"), Records { ipv4, ..Records::default() })
        })
        .collect();
    provider.apply(&zone(), &many).await.unwrap();
    assert_eq!(bind.lookup("m19.example.test", RecordType::A).await.len(), 10);
    // A name outside of the zone makes the server reject the whole update.
    let outside =
        [one(), vec![change("a.other.test", records(&["192.0.2.7"], &[], None))]].concat();
    let error = provider.apply(&zone(), &outside).await.unwrap_err();
    assert_eq!(error.effect, Effect::Rejected, "{error}");
    assert_eq!(bind.lookup("a.example.test", RecordType::A).await, ["192.0.2.2"]);
}

#[tokio::test]
async fn bind_refuses_other_keys_and_unsigned_updates() {
    let Some(bind) = Bind::start().await else { return };
    let other = |name: &str, text: &str| {
        let path = bind.directory.path().join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    for (key_file, text) in [
        (other("secret", &KEY.replace("c2Vj", "d2Vj")), "does not accept the key: BADSIG"),
        (other("name", &KEY.replace("\"k\"", "\"unknown\"")), "does not accept the key: BADKEY"),
        (None, "Refused"),
    ] {
        let error = provider(bind.port, key_file).apply(&zone(), &one()).await.unwrap_err();
        assert_eq!(error.effect, Effect::Refused);
        assert!(error.to_string().contains(text), "{error}\n{}", bind.log());
    }
    assert!(bind.lookup("a.example.test", RecordType::A).await.is_empty());
    // The key that the zone does not permit for updates of another zone.
    let elsewhere = Zone::new("other.test", "other.test").unwrap();
    let changes = [change("a.other.test", records(&["192.0.2.1"], &[], None))];
    let error = provider(bind.port, bind.key_file()).apply(&elsewhere, &changes).await.unwrap_err();
    assert_eq!(error.effect, Effect::Refused);
    assert!(error.to_string().contains("NotAuth"), "{error}");
}
