//! A server in this process, and a small client that returns raw responses.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use admission::Chain;
use api_meta::UserInfo;
use apiserver::{ApiServer, Config, StartError, Stores};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::{Client, HttpTransport, TlsMaterial};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use pki::{AltName, Authority, Key, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use serve::Body;
use store::{Store, embedded};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const ALGORITHM: KeyAlgorithm = KeyAlgorithm::EcdsaP256;
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) struct TestServer {
    pub(crate) api: ApiServer,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) tasks: rt::Tasks,
    pub(crate) directory: Arc<tempfile::TempDir>,
}

/// Returns the server that tests share. It runs on its own runtime until the process ends.
pub(crate) fn shared() -> &'static TestServer {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                send.send(start(|_| {}).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        receive.recv().unwrap()
    })
}

/// Returns an administrator of the shared server.
pub(crate) fn admin() -> Api {
    shared().user("admin", &["system:masters"])
}

/// Starts a server with a modified configuration.
pub(crate) async fn start(change: impl FnOnce(&mut Config)) -> TestServer {
    start_with(change, |chain| chain).await
}

/// Starts a server with a modified configuration and admission chain.
pub(crate) async fn start_with(
    change: impl FnOnce(&mut Config),
    extend: impl FnOnce(Chain) -> Chain,
) -> TestServer {
    try_start(change, extend).await.unwrap()
}

/// Starts a server like [`start_with`], or returns the error that prevents the start.
pub(crate) async fn try_start(
    change: impl FnOnce(&mut Config),
    extend: impl FnOnce(Chain) -> Chain,
) -> Result<TestServer, StartError> {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(write_pki(directory.path()));
    let store =
        embedded::Embedded::open(&directory.path().join("store"), embedded::Options::default());
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    let mut config = config(directory.path());
    change(&mut config);
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let chain = apiserver::admission_chain(&config).unwrap();
    let api = apiserver::start_with(config, extend(chain), store.clone(), &tasks).await?;
    Ok(TestServer { api, store, authority, tasks, directory: Arc::new(directory) })
}

pub(crate) fn validity() -> Validity {
    Validity::starting(SystemTime::now(), DAY)
}

fn write_pki(at: &Path) -> Authority {
    let authority = Authority::create("kubernetes", ALGORITHM, validity()).unwrap();
    pki::write_cert(&at.join("ca.crt"), authority.cert()).unwrap();
    let leaf = |name: &str, usage, alt_names| {
        let spec = LeafSpec { subject: Subject::new(name), alt_names, usage };
        let (cert, key) = authority.issue_new(&spec, ALGORITHM, validity()).unwrap();
        pki::write_cert(&at.join(format!("{name}.crt")), &cert).unwrap();
        pki::write_key(&at.join(format!("{name}.key")), &key).unwrap();
    };
    let names = vec![AltName::dns("kubernetes.default.svc"), AltName::Ip([127, 0, 0, 1].into())];
    leaf("apiserver", Usage::Server, names);
    leaf("kubelet-client", Usage::Client, Vec::new());
    let accounts = Key::generate(KeyAlgorithm::Rsa2048).unwrap();
    pki::write_key(&at.join("sa.key"), &accounts).unwrap();
    pki::write_public_key(&at.join("sa.pub"), &accounts).unwrap();
    authority
}

fn config(at: &Path) -> Config {
    Config {
        advertise: "10.0.0.1".parse().unwrap(),
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        compaction_interval: Duration::from_secs(3600),
        service_account_issuers: vec!["https://kubernetes.default.svc.cluster.local".to_owned()],
        kubelet_client: Some((at.join("kubelet-client.crt"), at.join("kubelet-client.key"))),
        proxy_client: Some(apiserver::ProxyClient {
            certificate: at.join("kubelet-client.crt"),
            key: at.join("kubelet-client.key"),
        }),
        bootstrap_tokens: true,
        enable_admission: vec!["NodeRestriction".to_owned()],
        ..testkit::config("127.0.0.1:0".parse().unwrap(), at)
    }
}

impl TestServer {
    /// Starts another server with the same keys on the same store.
    pub(crate) async fn beside(&self) -> Self {
        self.beside_with(|_| {}).await
    }

    /// Like [`Self::beside`], with a modified configuration.
    pub(crate) async fn beside_with(&self, change: impl FnOnce(&mut Config)) -> Self {
        self.beside_on(self.store.clone(), change).await
    }

    /// Like [`Self::beside_with`], with a different view of the store.
    pub(crate) async fn beside_on(
        &self,
        store: Arc<dyn Store>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        self.beside_on_stores(store.into(), change).await
    }

    /// Like [`Self::beside_on`], with stores of single resources.
    pub(crate) async fn beside_on_stores(
        &self,
        stores: Stores,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let (authority, directory) = (self.authority.clone(), self.directory.clone());
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let mut config = config(directory.path());
        change(&mut config);
        let store = stores.main.clone();
        let api = apiserver::start(config, stores, &tasks).await.unwrap();
        Self { api, store, authority, tasks, directory }
    }

    pub(crate) fn user(&self, name: &str, groups: &[&str]) -> Api {
        let mut groups = groups.to_vec();
        groups.push("system:authenticated");
        Api(self.api.client(UserInfo::new(name, &groups), "tests/1"))
    }

    pub(crate) fn admin(&self) -> Api {
        self.user("admin", &["system:masters"])
    }

    /// Opens a TLS connection for clients that misbehave or use other protocols.
    pub(crate) async fn dial(&self, to: SocketAddr, protocol: &str) -> TlsStream<TcpStream> {
        let mut tls = self.material().client_config().unwrap();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let socket = TcpSocket::new_v4().unwrap();
        // A small and known kernel buffer for clients that do not read.
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let stream = socket.connect(to).await.unwrap();
        let name = ServerName::from(to.ip());
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap()
    }

    /// Returns the token of a namespace's service account, after granting it all permissions.
    pub(crate) async fn powerful_token(&self, namespace: &str) -> String {
        let binding = json!({
            "metadata": {"name": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        });
        let admin = self.admin();
        admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.ok();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
        let token = admin.post(&path, &json!({"spec": {}})).await.ok();
        token["status"]["token"].as_str().unwrap().to_owned()
    }

    fn material(&self) -> TlsMaterial {
        let ca = Some(self.authority.cert().to_pem().into_bytes());
        TlsMaterial { ca, ..TlsMaterial::default() }
    }

    /// Returns a client over TLS with a certificate, a token or no credentials.
    pub(crate) fn tls(&self, identity: Identity) -> Api {
        self.tls_to(self.api.address(), identity)
    }

    pub(crate) fn tls_to(&self, address: SocketAddr, identity: Identity) -> Api {
        Self::over(self.material(), address, identity)
    }

    /// Like [`Self::tls`], with another trusted authority (PEM).
    pub(crate) fn tls_trusting(&self, ca: Vec<u8>, identity: Identity) -> Api {
        let material = TlsMaterial { ca: Some(ca), ..TlsMaterial::default() };
        Self::over(material, self.api.address(), identity)
    }

    fn over(mut material: TlsMaterial, address: SocketAddr, identity: Identity) -> Api {
        let mut bearer: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>> = None;
        match identity {
            Identity::Nobody => {}
            Identity::Certificate(certificate, key) => {
                material.certificate = Some(certificate.into_bytes());
                material.key = Some(key.into_bytes());
            }
            Identity::Token(token) => bearer = Some(Arc::new(move || Some(token.clone()))),
        }
        let tls = material.client_config().unwrap();
        let transport = HttpTransport::new(&format!("https://{address}"), tls, bearer).unwrap();
        Api(Client::new(Arc::new(transport), "tests/1"))
    }
}

pub(crate) enum Identity {
    Nobody,
    /// Certificate and key, as PEM.
    Certificate(String, String),
    Token(String),
}

impl Identity {
    pub(crate) fn issued(authority: &Authority, subject: Subject, validity: Validity) -> Self {
        let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
        let (cert, key) = authority.issue_new(&spec, ALGORITHM, validity).unwrap();
        Self::Certificate(cert.to_pem(), key.to_pem().unwrap())
    }
}

/// A client that returns whole responses.
#[derive(Clone)]
pub(crate) struct Api(pub(crate) Client);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| {
            panic!("{e} in {:?}", String::from_utf8_lossy(&self.body));
        })
    }

    /// Returns the object of a successful call.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!(self.code < 300, "{}: {}", self.code, String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Returns the message of a call that failed with this code and reason.
    #[track_caller]
    pub(crate) fn refused(&self, code: u16, reason: &str) -> String {
        let status = self.json();
        assert_eq!(
            (u64::from(self.code), status["code"].as_u64(), status["reason"].as_str()),
            (u64::from(code), Some(u64::from(code)), Some(reason)),
            "{status}"
        );
        status["message"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect()
    }
}

impl Api {
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut request = Request::builder().method(method.parse::<Method>().unwrap()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(client::full(body)).unwrap();
        let response = self.0.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// Sends a patch. `kind` is `json`, `merge`, `strategic` or `apply`.
    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        let content_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            _ => "application/apply-patch+yaml",
        };
        self.send("PATCH", path, &[("content-type", content_type)], body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send("DELETE", path, &headers, options.to_string()).await
    }

    /// Creates a namespace with the service account that Pods need, and returns its name.
    pub(crate) async fn namespace(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut name = String::from("test-");
        write!(name, "{}", COUNT.fetch_add(1, Ordering::Relaxed)).unwrap();
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.ok();
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        self.post(&accounts, &json!({"metadata": {"name": "default"}})).await.ok();
        name
    }
}

/// Serves a handler over TLS with a certificate of this authority for these names, until its tasks end.
pub(crate) async fn listen<H: serve::Handler>(
    authority: &Authority,
    names: Vec<AltName>,
    handler: impl FnOnce(SocketAddr, rt::Tasks) -> H,
) -> Arc<H> {
    listen_at([127, 0, 0, 1].into(), authority, names, handler).await
}

/// The ConfigMaps of the namespace default.
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Headers by which a client would pretend that a proxy has authenticated it as an administrator.
pub(crate) const FORGED_IDENTITY: [(&str, &str); 5] = [
    ("x-remote-user", "root"),
    ("x-remote-group", "system:masters"),
    ("x-remote-uid", "0"),
    ("x-remote-extra-scopes", "all"),
    ("x_remote_user", "root"),
];

/// Echoes the bytes of an upgraded connection.
pub(crate) fn spawn_echo(tasks: &rt::Tasks, request: &mut Request<Body>) {
    let upgraded = hyper::upgrade::on(request);
    tasks.spawn("echo", async move {
        let mut stream = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
        let mut byte = [0];
        while stream.read(&mut byte).await.unwrap_or(0) > 0 {
            stream.write_all(&byte).await.unwrap();
        }
    });
}

/// Sends a request that upgrades a connection to [`spawn_echo`], and returns the head of the response.
pub(crate) async fn check_echo(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    stream.write_all(b"there and back").await.unwrap();
    let mut back = [0; 14];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"there and back");
    head
}

/// Serves a webhook. The handler receives a kubeconfig with its path and a user whose token is `secret`.
pub(crate) async fn webhook<H: serve::Handler>(
    path: &str,
    handler: impl FnOnce(PathBuf) -> H,
) -> Arc<H> {
    let authority = Authority::create("hooks", ALGORITHM, validity()).unwrap();
    let ca = STANDARD.encode(authority.cert().to_pem());
    let kubeconfig = tempfile::tempdir().unwrap().keep().join("hook.conf");
    listen(&authority, vec![AltName::Ip([127, 0, 0, 1].into())], |address, _| {
        let config = json!({
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{address}{path}"), "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        handler(kubeconfig)
    })
    .await
}

/// Like [`listen`], at another address of this machine.
pub(crate) async fn listen_at<H: serve::Handler>(
    address: IpAddr,
    authority: &Authority,
    names: Vec<AltName>,
    handler: impl FnOnce(SocketAddr, rt::Tasks) -> H,
) -> Arc<H> {
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("crt"), directory.path().join("key"));
    let spec = LeafSpec { subject: Subject::new("hook"), alt_names: names, usage: Usage::Server };
    let made = authority.issue_new(&spec, ALGORITHM, validity()).unwrap();
    pki::write_cert(&cert, &made.0).unwrap();
    pki::write_key(&key, &made.1).unwrap();
    let tls = serve::ServerTls::from_files(&cert, &key, Vec::new()).unwrap();
    let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let handler = Arc::new(handler(listener.local_addr().unwrap(), tasks.clone()));
    let (limits, own) = (serve::Limits::default(), handler.clone());
    tasks.spawn("webhook", serve::serve(listener, Some(tls), limits, own, tasks.clone()));
    handler
}

pub(crate) fn config_map(name: &str, data: Value) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    })
}
