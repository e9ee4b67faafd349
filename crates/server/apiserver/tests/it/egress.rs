//! The egress selector: proxies between the API server and kubelets, webhooks and issuers.

use std::{net::SocketAddr, path::Path, sync::Arc};

use apiserver::{Config, Egress};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use pki::{AltName, Authority, KeyAlgorithm};
use serde_json::{Value, json};
use serve::Body;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpStream, UnixListener},
};

use crate::harness::{TestServer, config_map, listen, start, validity};

/// A proxy at a Unix socket that connects all targets to one server.
#[derive(Clone, Default)]
pub(crate) struct Tunnels(Arc<Mutex<Vec<String>>>);

impl Tunnels {
    /// Serves until the runtime ends. Without a server, tunnels are refused.
    pub(crate) fn serve(&self, socket: &Path, server: Option<SocketAddr>) {
        let (listener, targets) = (UnixListener::bind(socket).unwrap(), self.0.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let targets = targets.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    targets.lock().push(line.trim_end().to_owned());
                    while line != "\r\n" {
                        line.clear();
                        stream.read_line(&mut line).await.unwrap();
                    }
                    let Some(server) = server else {
                        stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.unwrap();
                        return;
                    };
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let mut target = TcpStream::connect(server).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut stream, &mut target).await;
                });
            }
        });
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A server that answers every request with its path, and admission reviews with a denial.
struct Echo;

impl serve::Handler for Echo {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if path != "/review" {
                return serve::answer(StatusCode::OK, "text/plain", format!("{path}\n"));
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let status = json!({"message": "by proxy"});
            let answer = json!({
                "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
                "response": {"uid": review["request"]["uid"], "allowed": false, "status": status},
            });
            serve::answer(StatusCode::OK, "application/json", answer.to_string())
        })
    }
}

/// Sets the networks that are reached through the socket beside the server's files.
pub(crate) fn select(config: &mut Config, networks: &[&str]) -> std::path::PathBuf {
    let socket = config.tls_key.with_file_name("proxy.sock");
    let uds = json!({"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}}});
    let selections = networks.iter().map(|name| json!({"name": name, "connection": uds}));
    let selector = json!({
        "kind": "EgressSelectorConfiguration", "apiVersion": "apiserver.k8s.io/v1beta1",
        "egressSelections": selections.collect::<Vec<_>>(),
    });
    let file = config.tls_key.with_file_name("egress.json");
    std::fs::write(&file, selector.to_string()).unwrap();
    config.egress = Egress::load(&file).unwrap();
    socket
}

/// Starts a TLS server whose certificate has these names, and returns its address.
async fn echo(authority: &Authority, names: &[&str]) -> SocketAddr {
    let names = names.iter().map(|name| AltName::dns(*name)).collect();
    let mut at = None;
    listen(authority, names, |address, _| {
        at = Some(address);
        Echo
    })
    .await;
    at.unwrap()
}

async fn create_node(server: &TestServer) {
    let api = server.admin();
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "far"}})).await.ok();
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }});
    api.patch("/api/v1/nodes/far/status", "merge", &status).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn reaches_kubelets_and_webhooks_through_proxies() {
    let authority = Authority::create("far", KeyAlgorithm::EcdsaP256, validity()).unwrap();
    let at = echo(&authority, &["hook.example.com"]).await;
    let tunnels = Tunnels::default();
    let server = start(|config| {
        tunnels.serve(&select(config, &["cluster", "controlplane"]), Some(at));
    })
    .await;
    create_node(&server).await;
    let api = server.admin();
    let answer = api.get("/api/v1/nodes/far/proxy/healthz").await;
    assert_eq!((answer.code, &*answer.body), (200, &b"/healthz\n"[..]));
    assert_eq!(tunnels.take(), ["CONNECT 192.0.2.7:10250 HTTP/1.1"]);

    let namespace = api.namespace().await;
    crate::proxy_targets::pod_at(&api, &namespace, "p", "192.0.2.8", 80).await;
    let pod = format!("/api/v1/namespaces/{namespace}/pods/https:p:8443/proxy/x");
    assert_eq!(&*api.get(&pod).await.body, b"/x\n");
    assert_eq!(tunnels.take(), ["CONNECT 192.0.2.8:8443 HTTP/1.1"]);

    let bundle = BASE64_STANDARD.encode(authority.cert().to_pem());
    let hook = json!({
        "metadata": {"name": "far"},
        "webhooks": [{
            "name": "far.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://hook.example.com/review", "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        }],
    });
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    api.post(hooks, &hook).await.ok();
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let denied = api.post(&maps, &config_map("a", json!({}))).await;
    assert_eq!(denied.code, 400, "{:?}", String::from_utf8_lossy(&denied.body));
    assert!(String::from_utf8_lossy(&denied.body).contains("by proxy"));
    assert_eq!(tunnels.take(), ["CONNECT hook.example.com:443 HTTP/1.1"]);
    // A user without rights opens no tunnel.
    let nobody = server.user("nobody", &[]).get("/api/v1/nodes/far/proxy/healthz").await;
    assert_eq!((nobody.code, tunnels.take().len()), (403, 0));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_proxy_that_opens_no_tunnel() {
    let tunnels = Tunnels::default();
    let server = start(|config| tunnels.serve(&select(config, &["cluster"]), None)).await;
    create_node(&server).await;
    let answer = server.admin().get("/api/v1/nodes/far/proxy/healthz").await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.code, 503, "{text}");
    assert!(text.contains("HTTP/1.1 403 Forbidden"), "{text}");
    server.tasks.shutdown().stop();
}

/// A proxy that answers without end or not at all must not hold a request for longer than the connection timeout.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_answer_of_proxy() {
    let server = start(|config| {
        let listener = UnixListener::bind(select(config, &["cluster"])).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut head = [0; 1024];
                    let _ = stream.read(&mut head).await;
                    while stream.write_all(&[b'a'; 1024]).await.is_ok() {}
                });
            }
        });
    })
    .await;
    create_node(&server).await;
    let answer = server.admin().get("/api/v1/nodes/far/proxy/healthz").await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.code == 503 && text.contains("the head of its answer is too long"), "{text}");
    server.tasks.shutdown().stop();
}
