//! Runs the whole server over real sockets in its own network namespace. Needs root.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[path = "../../../proxy/tests/it/api.rs"]
mod api;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use api::FakeApi;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::A},
};
use netlink::Namespace;
use serde_json::{Value, json};

struct Server {
    namespace: Arc<Namespace>,
    directory: tempfile::TempDir,
    shutdown: rt::Shutdown,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(namespace: Arc<Namespace>, api: &FakeApi, corefile: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("Corefile");
        std::fs::write(&path, corefile).unwrap();
        let (shutdown, client) = (rt::Shutdown::new(), api.client());
        let (tasks, inside) = (rt::Tasks::new(shutdown.clone()), namespace.clone());
        let thread = std::thread::spawn(move || {
            inside
                .run(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let options = dns::Options { corefile: path, port: 53, kubeconfig: None };
                    runtime.block_on(dns::run(options, Some(client), &tasks)).unwrap();
                })
                .unwrap();
        });
        Self { namespace, directory, shutdown, thread: Some(thread) }
    }

    fn http(&self, port: u16, path: &str) -> String {
        let Ok(mut stream) =
            self.namespace.run(|| TcpStream::connect(("127.0.0.1", port))).unwrap()
        else {
            return String::new();
        };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn ready(&self) {
        eventually("ready", || self.http(8181, "/ready").starts_with("HTTP/1.1 200"));
    }

    fn ask(&self, name: &str, kind: RecordType) -> Message {
        let socket = self.namespace.run(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        socket.connect("127.0.0.1:53").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send(&query(name, kind)).unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    fn ask_over_tcp(&self, name: &str, kind: RecordType) -> Message {
        let mut stream =
            self.namespace.run(|| TcpStream::connect("127.0.0.1:53").unwrap()).unwrap();
        let packet = query(name, kind);
        // Two queries at once, and the first in pieces.
        let mut framed = (packet.len() as u16).to_be_bytes().to_vec();
        framed.extend_from_slice(&packet);
        stream.write_all(&framed[..5]).unwrap();
        stream.write_all(&[&framed[5..], &framed].concat()).unwrap();
        let mut answers = [(); 2]
            .map(|()| {
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut answer = vec![0; u16::from_be_bytes(length).into()];
                stream.read_exact(&mut answer).unwrap();
                Message::from_vec(&answer).unwrap()
            })
            .into_iter();
        answers.next().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn ips(message: &Message) -> Vec<IpAddr> {
    let mut ips: Vec<_> =
        message.answers.iter().filter_map(|record| record.data.ip_addr()).collect();
    ips.sort();
    ips
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server on the internet: each name has one address, which is the number of queries so far.
fn upstream(namespace: &Namespace, address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let socket = namespace.run(|| UdpSocket::bind(address).unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        for count in 1u8.. {
            let Ok((length, peer)) = socket.recv_from(&mut buffer) else { return };
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let mut response = Message::response(query.metadata.id, OpCode::Query);
            let name = query.queries[0].name().clone();
            response.add_queries(query.queries);
            if name.to_ascii().starts_with("none.") {
                response.metadata.response_code = ResponseCode::NXDomain;
            } else {
                response.add_answer(Record::from_rdata(
                    name,
                    300,
                    RData::A(A([192, 0, 2, count].into())),
                ));
            }
            let _ = socket.send_to(&response.to_vec().unwrap(), peer);
        }
    });
}

fn corefile(server: &str) -> String {
    format!(
        ".:53 {{\n errors\n health {{\n lameduck 100ms\n }}\n ready\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n pods insecure\n fallthrough in-addr.arpa ip6.arpa\n ttl 30\n }}\n prometheus :9153\n forward . {server} {{\n max_concurrent 1000\n }}\n cache 30 {{\n disable success cluster.local\n disable denial cluster.local\n }}\n loop\n reload 1s\n loadbalance\n}}\n"
    )
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn namespace() -> Arc<Namespace> {
    Arc::new(Namespace::new().unwrap())
}

#[test]
fn answers_cluster_names_over_udp_and_tcp() {
    let api = FakeApi::default();
    api.put("namespaces", json!({"metadata": {"name": "default"}}));
    let server = Server::start(namespace(), &api, &corefile("127.0.0.9:5353"));
    server.ready();
    assert!(server.http(8080, "/health").starts_with("HTTP/1.1 200"));
    let name = "web.default.svc.cluster.local.";
    assert_eq!(server.ask(name, RecordType::A).metadata.response_code, ResponseCode::NXDomain);
    api.put("services", service("web", json!({"clusterIP": "10.96.0.5"})));
    eventually("a new Service", || {
        ips(&server.ask(name, RecordType::A)) == ["10.96.0.5".parse::<IpAddr>().unwrap()]
    });
    assert_eq!(ips(&server.ask_over_tcp(name, RecordType::A)).len(), 1);
    api.put("services", service("db", json!({"clusterIP": "None"})));
    let endpoints: Vec<_> =
        (1..=100).map(|n| json!({"addresses": [format!("10.1.0.{n}")]})).collect();
    api.put("endpointslices", json!({"metadata": {"name": "db-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4", "ports": null, "endpoints": endpoints}));
    let name = "db.default.svc.cluster.local.";
    eventually("endpoints", || !ips(&server.ask(name, RecordType::A)).is_empty());
    assert!(
        server.ask(name, RecordType::A).metadata.truncation,
        "a hundred addresses do not fit into 512 bytes"
    );
    assert_eq!(ips(&server.ask_over_tcp(name, RecordType::A)).len(), 100);
    let pointer = server.ask("7.0.1.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(pointer.answers[0].data.to_string(), "10-1-0-7.db.default.svc.cluster.local.");
    api.delete("services", "default/web");
    eventually("the Service is gone", || {
        server.ask("web.default.svc.cluster.local.", RecordType::A).answers.is_empty()
    });
    assert!(
        server.http(9153, "/metrics").contains("coredns_dns_responses_total{rcode=\"NXDOMAIN\"}")
    );
}

#[test]
fn forwards_caches_and_follows_aliases() {
    let (api, namespace) = (FakeApi::default(), namespace());
    upstream(&namespace, "127.0.0.9:5353");
    api.put(
        "services",
        service("out", json!({"type": "ExternalName", "externalName": "www.example.com"})),
    );
    let server = Server::start(namespace, &api, &corefile("127.0.0.9:5353"));
    server.ready();
    let first = ips(&server.ask("www.example.com.", RecordType::A));
    assert_eq!(first.len(), 1);
    let again = server.ask("WWW.example.com.", RecordType::A);
    assert_eq!(ips(&again), first, "from the cache");
    assert!(again.answers[0].ttl <= 30, "at most the TTL of the Corefile");
    let alias = server.ask("out.default.svc.cluster.local.", RecordType::A);
    assert_eq!(alias.answers[0].data.to_string(), "www.example.com.");
    assert_eq!(ips(&alias), first);
    assert_ne!(ips(&server.ask("other.example.com.", RecordType::A)), first);
    assert_eq!(
        server.ask("none.example.com.", RecordType::A).metadata.response_code,
        ResponseCode::NXDomain
    );
    let reverse = server.ask("1.2.0.192.in-addr.arpa.", RecordType::A);
    assert_eq!(ips(&reverse).len(), 1, "falls through to the forwarder");
}

#[test]
fn limits_waiting_queries_of_one_client() {
    let (api, namespace) = (FakeApi::default(), namespace());
    let silent = namespace.run(|| UdpSocket::bind("127.0.0.9:5353").unwrap()).unwrap();
    silent.set_nonblocking(true).unwrap();
    let server = Server::start(namespace, &api, &corefile("127.0.0.9:5353"));
    server.ready();
    let client =
        |address: &str| server.namespace.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    let [greedy, other] = ["127.0.0.1", "127.0.0.2"].map(client);
    for n in 0..270 {
        let name = format!("n{n}.example.com.");
        greedy.send_to(&query(&name, RecordType::A), "127.0.0.1:53").unwrap();
    }
    let (mut seen, mut buffer) = (BTreeSet::new(), [0; 1024]);
    eventually("the query of the other client", || {
        other.send_to(&query("other.example.com.", RecordType::A), "127.0.0.1:53").unwrap();
        while let Ok((length, _)) = silent.recv_from(&mut buffer) {
            let message = Message::from_vec(&buffer[..length]).unwrap();
            seen.insert(message.queries[0].name().to_ascii());
        }
        seen.contains("other.example.com.")
    });
    assert_eq!(seen.iter().filter(|name| name.starts_with('n')).count(), 256);
}

#[test]
fn skips_dead_server_and_stops_loop() {
    let (api, namespace) = (FakeApi::default(), namespace());
    upstream(&namespace, "127.0.0.9:5353");
    {
        let server =
            Server::start(namespace.clone(), &api, &corefile("127.0.0.8:5353 127.0.0.9:5353"));
        server.ready();
        for n in 0..8 {
            assert_eq!(ips(&server.ask(&format!("{n}.example.com."), RecordType::A)).len(), 1);
        }
    }
    let server = Server::start(namespace, &api, &corefile("127.0.0.1:53"));
    server.ready();
    eventually("the loop is noticed", || {
        let start = Instant::now();
        let code = server.ask("example.com.", RecordType::A).metadata.response_code;
        code == ResponseCode::ServFail && start.elapsed() < Duration::from_millis(100)
    });
    std::fs::write(server.directory.path().join("Corefile"), ".:53 {\n nonsense\n}").unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(
        server.ask("example.com.", RecordType::A).metadata.response_code,
        ResponseCode::ServFail,
        "a wrong Corefile is not used"
    );
    replace(server.directory.path(), &corefile("127.0.0.9:5353"));
    eventually("a changed Corefile is used", || {
        ips(&server.ask("example.com.", RecordType::A)).len() == 1
    });
}

#[test]
fn follows_cluster_that_a_changed_corefile_adds() {
    let api = FakeApi::default();
    api.put("namespaces", json!({"metadata": {"name": "default"}}));
    api.put("services", service("web", json!({"clusterIP": "10.96.0.5"})));
    let plain = ".:53 {\n ready\n reload 1s\n hosts {\n 192.0.2.9 gate.example\n }\n}\n";
    let server = Server::start(namespace(), &api, plain);
    server.ready();
    let name = "web.default.svc.cluster.local.";
    assert!(server.ask(name, RecordType::A).answers.is_empty());
    replace(server.directory.path(), &corefile("127.0.0.9:5353"));
    eventually("the Service is known", || ips(&server.ask(name, RecordType::A)).len() == 1);
}

/// Replaces a file as the kubelet updates a ConfigMap's file.
fn replace(directory: &Path, text: &str) {
    std::fs::write(directory.join("new"), text).unwrap();
    std::fs::rename(directory.join("new"), directory.join("Corefile")).unwrap();
}

#[test]
fn answers_during_lameduck() {
    let api = FakeApi::default();
    api.put("namespaces", json!({"metadata": {"name": "default"}}));
    let server =
        Server::start(namespace(), &api, &corefile("127.0.0.9:5353").replace("100ms", "2s"));
    server.ready();
    server.shutdown.stop();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        server.ask("default.svc.cluster.local.", RecordType::A).metadata.response_code,
        ResponseCode::NoError
    );
}
