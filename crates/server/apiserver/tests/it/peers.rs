//! The proxy between the API servers of a cluster: forwarded requests, discovery, callers without the right, and peers
//! that are hostile, hang or stop.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api_codec::protobuf;
use api_schema::Schema;
use apiserver::{Config, PeerOptions, StartError, flags::RuntimeConfig};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use pki::{AltName, Authority, KeyAlgorithm};
use serde_json::{Value, json};
use serve::{Body, Handler};
use store::{Expected, Op, Write};

use crate::{
    custom::{DEFINITIONS, define},
    harness::{
        Answer, Api, Identity, TestServer, check_echo, listen, spawn_echo, start, try_start,
        validity,
    },
    proxy_targets::Trap,
    records::{API_SERVICES, until},
    watches::Events,
};

const SLICES: &str = "/apis/resource.k8s.io/v1beta1/resourceslices";
const GHOSTS: &str = "/apis/ghost.example.com/v1/ghosts";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const UNRESOLVED: &str = "Error getting ip and port info of the remote server while proxying";

/// Configures a server as one of several that trust each other.
fn peering(config: &mut Config) {
    let names = |name: &str| vec![name.to_owned()];
    config.shares_store = true;
    config.peers = PeerOptions {
        ca: config.client_ca.clone(),
        advertise_ip: Some([127, 0, 0, 1].into()),
        advertise_port: None,
    };
    config.front_proxy = Some(apiserver::FrontProxy {
        ca: config.client_ca.clone().unwrap(),
        allowed_names: names("kubelet-client"),
        username_headers: names("X-Remote-User"),
        uid_headers: names("X-Remote-Uid"),
        group_headers: names("X-Remote-Group"),
        extra_prefixes: names("X-Remote-Extra-"),
    });
}

/// Configures a peer that serves a version which others do not.
fn newer(config: &mut Config) {
    peering(config);
    let on = "resource.k8s.io/v1beta1=true".to_owned();
    config.runtime_config = RuntimeConfig::parse(&[on]).unwrap();
}

fn slice(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}})
}

async fn metrics(server: &TestServer) -> String {
    String::from_utf8(server.admin().get("/metrics").await.body.to_vec()).unwrap()
}

/// Waits for an answer, which may be text.
async fn until_answer(api: &Api, path: &str, wanted: impl Fn(&Answer) -> bool) {
    let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(20));
    let ask = || async {
        let answer = api.get(path).await;
        if wanted(&answer) { Ok(()) } else { Err(answer) }
    };
    rt::retry(patience, pause, |_| true, ask).await.unwrap();
}

async fn versions(api: &Api, group: &str, accept: &str) -> Vec<String> {
    let list = api.send("GET", "/apis", &[("accept", accept)], "").await.ok();
    let mut groups = list["items"].as_array().unwrap().iter();
    let group = groups.find(|found| found["metadata"]["name"] == group);
    let versions = group.map(|group| group["versions"].as_array().unwrap().clone());
    let name = |version: Value| version["version"].as_str().unwrap().to_owned();
    versions.unwrap_or_default().into_iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forwards_requests_that_only_peer_serves() {
    let old = start(peering).await;
    let admin = old.admin();
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let crd = json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "shareds.shared.example.com"},
        "spec": {"group": "shared.example.com", "scope": "Cluster", "names": {"plural": "shareds", "kind": "Shared"}, "versions": [version]},
    });
    let crd = define(&admin, &crd).await;
    assert_eq!(admin.get(SLICES).await.code, 404);
    let new = old.beside_with(newer).await;

    let namespace = admin.namespace().await;
    let api = old.tls(Identity::Token(old.powerful_token(&namespace).await));
    until(&api, SLICES, |code, _| code == 200).await;
    let made = api.post(SLICES, &slice("s")).await.ok();
    assert_eq!(made["apiVersion"], "resource.k8s.io/v1beta1");
    let mut events = Events::open(&api, &format!("{SLICES}?watch=1")).await;
    assert_eq!(events.short().await, "ADDED s");
    let at = format!("{SLICES}/s");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(api.patch(&at, "merge", &labels).await.ok()["metadata"]["labels"]["a"], "b");
    assert_eq!(events.short().await, "MODIFIED s");
    assert_eq!(new.admin().get(&at).await.ok()["metadata"]["labels"]["a"], "b");
    assert_eq!(api.get(&format!("{SLICES}/none")).await.code, 404);
    api.delete(&at, &json!({})).await.ok();
    assert_eq!(events.short().await, "DELETED s");
    let counted = metrics(&old).await;
    let labels =
        r#"code="200",group="resource.k8s.io",resource="resourceslices",version="v1beta1""#;
    assert!(
        counted.contains(&format!("apiserver_rerouted_request_total{{{labels}}}")),
        "{counted}"
    );

    // Neither the legacy documents nor a request that a peer has forwarded show or use other peers.
    assert_eq!(api.get("/apis/resource.k8s.io/v1beta1").await.code, 404);
    let forwarded = [("x-kubernetes-peer-proxied", "true")];
    api.send("GET", SLICES, &forwarded, "").await.refused(404, "NotFound");
    let group = "resource.k8s.io";
    assert_eq!(versions(&api, group, AGGREGATED).await, ["v1", "v1beta1"]);
    let alone = format!("{AGGREGATED};profile=nopeer");
    assert_eq!(versions(&api, group, &alone).await, ["v1"]);
    let beta = AGGREGATED.replace("v=v2", "v=v2beta1");
    assert_eq!(versions(&api, group, &beta).await, ["v1"]);
    assert_eq!(versions(&api, group, AGGREGATED).await, ["v1", "v1beta1"]);
    let counted = metrics(&old).await;
    for name in ["peer_aggregated_cache_hits", "peer_aggregated_cache_misses", "nopeer_requests"] {
        let line = format!("aggregator_discovery_{name}_total ");
        let zero = format!("{line}0\n");
        assert!(counted.contains(&line) && !counted.contains(&zero), "{name}: {counted}");
    }

    // Custom kinds are shared, so the peer's discovery does not outlive the definition.
    api.delete(&format!("{DEFINITIONS}/{crd}"), &json!({})).await.ok();
    until(&api, "/apis/shared.example.com/v1/shareds", |code, _| code == 404).await;
    assert!(versions(&api, "shared.example.com", AGGREGATED).await.is_empty());
    // Each server deletes the APIServices of custom kinds, but not those that the other one has created.
    until(&api, &format!("{API_SERVICES}/v1.shared.example.com"), |code, _| code == 404).await;
    api.get(&format!("{API_SERVICES}/v1beta1.resource.k8s.io")).await.ok();
    let counted = metrics(&old).await;
    let mut rerouted = counted.lines().filter(|line| line.starts_with("apiserver_rerouted"));
    assert!(!rerouted.any(|line| line.contains("shareds")), "{counted}");
    assert_eq!(api.get("/readyz/poststarthook/peer-discovery-workers").await.code, 200);
    new.tasks.shutdown().stop();
    old.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn authorizes_before_forwarding() {
    let old = start(peering).await;
    let new = old.beside_with(newer).await;
    until(&old.admin(), SLICES, |code, _| code == 200).await;
    let nobody = old.user("nobody", &[]);
    for method in ["GET", "POST", "DELETE"] {
        nobody.send(method, SLICES, &[], "").await.refused(403, "Forbidden");
    }
    let stranger = old.tls(Identity::Nobody);
    let smuggled = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    stranger.send("GET", SLICES, &smuggled, "").await.refused(403, "Forbidden");
    let marked = [smuggled[0], smuggled[1], ("x-kubernetes-peer-proxied", "true")];
    stranger.send("GET", SLICES, &marked, "").await.refused(403, "Forbidden");
    new.tls(Identity::Nobody).send("GET", SLICES, &marked, "").await.refused(403, "Forbidden");
    // The caller impersonates a user without the right.
    let namespace = old.admin().namespace().await;
    let api = old.tls(Identity::Token(old.powerful_token(&namespace).await));
    let alice = [("impersonate-user", "alice")];
    api.send("GET", SLICES, &alice, "").await.refused(403, "Forbidden");
    let counted = metrics(&old).await;
    assert!(!counted.contains(r#"apiserver_rerouted_request_total{code="403""#), "{counted}");
    new.tasks.shutdown().stop();
    old.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_503_while_peer_is_down() {
    let old = start(peering).await;
    let new = old.beside_with(newer).await;
    let (api, address) = (old.admin(), new.api.address());
    until(&api, SLICES, |code, _| code == 200).await;
    new.tasks.shutdown().stop();
    until_answer(&api, SLICES, |answer| answer.code != 200).await;
    until_answer(&api, SLICES, |answer| {
        assert_eq!(answer.code, 503);
        String::from_utf8_lossy(&answer.body).contains(UNRESOLVED)
    })
    .await;
    let counted = metrics(&old).await;
    assert!(
        counted.contains(r#"apiserver_peer_proxy_errors_total{group="resource.k8s.io""#),
        "{counted}"
    );
    assert_eq!(versions(&api, "resource.k8s.io", AGGREGATED).await, ["v1", "v1beta1"]);
    let again = old
        .beside_with(|config| {
            newer(config);
            config.bind = address;
        })
        .await;
    until_answer(&api, SLICES, |answer| answer.code == 200).await;
    again.tasks.shutdown().stop();
    old.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn requires_authorities_and_certificate() {
    let failed = try_start(
        |config| {
            peering(config);
            config.proxy_client = None;
        },
        |chain| chain,
    );
    let error = failed.await.err().expect("a server without a certificate for peers");
    assert!(matches!(error, StartError::Peers(_)), "{error}");
    for content in [None, Some("no certificate")] {
        let failed = try_start(
            |config| {
                peering(config);
                let file = config.client_ca.as_ref().unwrap().with_file_name("peers.crt");
                if let Some(content) = content {
                    std::fs::write(&file, content).unwrap();
                }
                config.peers.ca = Some(file);
            },
            |chain| chain,
        );
        let error = failed.await.err().expect("a server without authorities").to_string();
        assert!(error.contains("--peer-ca-file"), "{error}");
    }
}

/// A peer that serves `ghosts`, and misbehaves on demand.
struct Stub {
    address: SocketAddr,
    mode: Mutex<&'static str>,
    calls: AtomicUsize,
    /// The headers of the last request for a ghost.
    seen: Mutex<Value>,
    tasks: rt::Tasks,
}

impl Stub {
    async fn start(authority: &Authority, name: &str) -> Arc<Self> {
        let names = vec![AltName::dns(name)];
        let stub = |address, tasks| Self {
            address,
            mode: Mutex::new(""),
            calls: AtomicUsize::new(0),
            seen: Mutex::default(),
            tasks,
        };
        listen(authority, names, stub).await
    }

    fn discovery(&self, path: &str) -> Response<Body> {
        let verbs = ["get", "list", "watch"];
        let resource = json!({"resource": "ghosts", "scope": "Namespaced", "verbs": verbs,
            "responseKind": {"group": "ghost.example.com", "version": "v1", "kind": "Ghost"}});
        let group = json!({"metadata": {"name": "ghost.example.com"}, "versions": [{"version": "v1", "resources": [resource]}]});
        let items = if path == "/apis" { json!([group]) } else { json!([]) };
        let (code, body) = match *self.mode.lock() {
            "garbage" => (200, "\u{0}{".to_owned()),
            "wrong" => (200, json!({"items": [{"metadata": {"name": []}}]}).to_string()),
            "deep" => (200, "[".repeat(1 << 20)),
            "large" => (200, " ".repeat(100 << 20)),
            "moved" => (302, String::new()),
            "unchanged" => (304, String::new()),
            "refused" => (401, String::new()),
            _ => (200, json!({ "items": items }).to_string()),
        };
        let response = Response::builder().status(code).header("location", "https://127.0.0.1/");
        response.header(header::CONTENT_TYPE, AGGREGATED).body(client::full(body)).unwrap()
    }

    fn ghost(&self, mut request: Request<Body>) -> Response<Body> {
        let headers = request.headers().iter();
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        *self.seen.lock() = headers.map(|(name, value)| (name.to_string(), text(value))).collect();
        let path = request.uri().path();
        if path.ends_with("/moved") {
            let moved = Response::builder().status(307).header("location", "https://127.0.0.1/");
            return moved.body(client::full("")).unwrap();
        }
        if !path.ends_with("/exec") {
            return Response::new(client::full("{\"kind\":\"GhostList\"}"));
        }
        spawn_echo(&self.tasks, &mut request);
        let head = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let head = head.header(header::CONNECTION, "Upgrade").header(header::UPGRADE, "echo");
        head.body(client::full("")).unwrap()
    }

    /// Writes or deletes the key of an API server at the stub's address.
    async fn register(&self, server: &TestServer, name: &str, present: bool) {
        let endpoints = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"labels": {"apiserverIdentity": name}},
            "subsets": [{"addresses": [{"ip": self.address.ip()}], "ports": [{"name": "https", "port": self.address.port()}]}]});
        let value = protobuf::to_protobuf(Schema::builtin(), "v1", "Endpoints", &endpoints);
        let put = Op::Put { value: value.unwrap().into(), ttl_seconds: None };
        let op = if present { put } else { Op::Delete };
        let key = format!("/registry/peerserverleases/{name}").into();
        server.store.write(Write { key, expected: Expected::Any, op }).await.unwrap();
    }

    async fn called(&self, more_than: usize) {
        let called = || self.calls.load(Ordering::Relaxed) > more_than;
        let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(10));
        assert!(rt::wait_until(patience, pause, called).await, "no request within 30 s");
    }
}

impl Handler for Stub {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let path = request.uri().path().to_owned();
            if *self.mode.lock() == "hanging" {
                std::future::pending::<()>().await;
            }
            match path.as_str() {
                "/api" | "/apis" => self.discovery(&path),
                _ => self.ghost(request),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_identity_and_passes_upgrades() {
    let server = start(peering).await;
    let stub = Stub::start(&server.authority, "kubernetes.default.svc").await;
    stub.register(&server, "apiserver-stub", true).await;
    let namespace = server.admin().namespace().await;
    let token = server.powerful_token(&namespace).await;
    let api = server.tls(Identity::Token(token.clone()));
    until(&api, GHOSTS, |code, _| code == 200).await;
    let sent = [
        ("x-remote-user", "root"),
        ("connection", "x-kubernetes-peer-proxied"),
        ("x-stays", "yes"),
    ];
    api.send("GET", GHOSTS, &sent, "").await.ok();
    let seen = stub.seen.lock().clone();
    assert_eq!(seen["x-remote-user"], format!("system:serviceaccount:{namespace}:default"));
    assert_eq!(
        (&seen["x-kubernetes-peer-proxied"], &seen["x-stays"]),
        (&json!("true"), &json!("yes"))
    );
    assert!(seen["authorization"].is_null(), "{seen}");
    let asked = [("impersonate-user", "alice"), ("impersonate-group", "system:masters")];
    api.send("GET", GHOSTS, &asked, "").await.ok();
    let seen = stub.seen.lock().clone();
    assert_eq!(
        (&seen["x-remote-user"], &seen["impersonate-user"]),
        (&json!("alice"), &Value::Null)
    );
    assert_eq!(api.get(&format!("{GHOSTS}/moved")).await.code, 502);

    let mut stream = server.dial(server.api.address(), "http/1.1").await;
    let path = "/apis/ghost.example.com/v1/namespaces/a/ghosts/g/exec";
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n"
    );
    check_echo(&mut stream, &request).await;
    // A peer without a key and without a Lease has left the cluster.
    stub.register(&server, "apiserver-stub", false).await;
    until(&api, GHOSTS, |code, _| code == 404).await;
    server.tasks.shutdown().stop();
}

/// Without a bundle, the system's authorities would verify the peers.
#[tokio::test(flavor = "multi_thread")]
async fn keeps_authorities_until_their_file_has_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("peers.crt");
    let server = start(|config| {
        peering(config);
        std::fs::copy(config.client_ca.as_ref().unwrap(), &file).unwrap();
        config.peers.ca = Some(file.clone());
    })
    .await;
    let stub = Stub::start(&server.authority, "kubernetes.default.svc").await;
    stub.register(&server, "apiserver-stub", true).await;
    let namespace = server.admin().namespace().await;
    let api = server.tls(Identity::Token(server.powerful_token(&namespace).await));
    until(&api, GHOSTS, |code, _| code == 200).await;
    for (content, name) in [("", "apiserver-a"), ("no certificate", "apiserver-b")] {
        std::fs::write(&file, content).unwrap();
        // A new peer is verified with the former authorities.
        let new = Stub::start(&server.authority, "kubernetes.default.svc").await;
        new.register(&server, name, true).await;
        new.called(0).await;
        api.get(GHOSTS).await.ok();
    }
    let errors = metrics(&server).await;
    assert!(!errors.contains("apiserver_peer_discovery_sync_errors_total{"), "{errors}");
    let other = Authority::create("other", KeyAlgorithm::EcdsaP256, validity()).unwrap();
    std::fs::write(&file, other.cert().to_pem()).unwrap();
    let signed_by_other = Stub::start(&other, "kubernetes.default.svc").await;
    signed_by_other.register(&server, "apiserver-other", true).await;
    signed_by_other.called(0).await;
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn survives_hostile_peers() {
    let server = start(peering).await;
    let api = server.admin();
    let modes = ["garbage", "wrong", "deep", "large", "moved", "unchanged", "refused"];
    let mut stubs = Vec::new();
    for mode in modes {
        let stub = Stub::start(&server.authority, "kubernetes.default.svc").await;
        *stub.mode.lock() = mode;
        stub.register(&server, &format!("apiserver-{mode}"), true).await;
        stubs.push(stub);
    }
    for stub in &stubs {
        // The second round of requests follows the failure of the first one.
        stub.called(3).await;
    }
    assert_eq!(api.get(GHOSTS).await.code, 404);
    assert!(versions(&api, "ghost.example.com", AGGREGATED).await.is_empty());
    api.get("/api/v1/namespaces").await.ok();
    // Each one is queried again until its answer is valid, and then gets its share of the requests.
    stubs.iter().for_each(|stub| *stub.mode.lock() = "");
    let is_served = |_: &Answer| stubs.iter().all(|stub| !stub.seen.lock().is_null());
    until_answer(&api, GHOSTS, is_served).await;
    let counted = metrics(&server).await;
    let failures = r#"apiserver_peer_discovery_sync_errors_total{type="fetch_discovery"}"#;
    assert!(counted.contains(failures), "{counted}");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_nothing_to_strangers() {
    let server = start(peering).await;
    let api = server.admin();
    let other = Authority::create("other", KeyAlgorithm::EcdsaP256, validity()).unwrap();
    let signed_by_other = Stub::start(&other, "kubernetes.default.svc").await;
    let with_other_name = Stub::start(&server.authority, "ext.default.svc").await;
    signed_by_other.register(&server, "apiserver-a", true).await;
    with_other_name.register(&server, "apiserver-b", true).await;
    // A tenant who may write Leases has no influence on addresses.
    let trap = Trap::set();
    let lease = json!({"metadata": {"name": "apiserver-c", "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"},
            "annotations": {"kubernetes.io/peer-advertise-address": format!("127.0.0.1:{}", trap.port())}},
        "spec": {"holderIdentity": "apiserver-c_x", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z"}});
    api.post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", &lease).await.ok();
    let genuine = Stub::start(&server.authority, "kubernetes.default.svc").await;
    genuine.register(&server, "apiserver-d", true).await;
    until(&api, GHOSTS, |code, _| code == 200).await;
    for _ in 0..20 {
        api.get(GHOSTS).await.ok();
    }
    let calls = [&signed_by_other, &with_other_name].map(|s| s.calls.load(Ordering::Relaxed));
    assert_eq!(calls, [0, 0]);
    trap.is_untouched("a Lease");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_requests_to_peer_that_hangs() {
    let short = |config: &mut Config| {
        peering(config);
        config.request_timeout = Duration::from_secs(2);
    };
    let server = start(short).await;
    let api = server.admin();
    let stub = Stub::start(&server.authority, "kubernetes.default.svc").await;
    stub.register(&server, "apiserver-stub", true).await;
    until(&api, GHOSTS, |code, _| code == 200).await;
    *stub.mode.lock() = "hanging";
    let watched = format!("{GHOSTS}?watch=1");
    let (read, watch, other) =
        tokio::join!(api.get(GHOSTS), api.get(&watched), api.get("/api/v1/namespaces"));
    let late = b"error trying to reach service: context deadline exceeded\n";
    for answer in [read, watch] {
        assert_eq!((answer.code, &*answer.body), (503, &late[..]));
    }
    other.ok();
    server.tasks.shutdown().stop();
}
