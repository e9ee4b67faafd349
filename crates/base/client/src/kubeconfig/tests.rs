use std::time::{Duration, SystemTime};

use http::{HeaderMap, Request, Response};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use pki::{AltName, Validity};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::{
    Transport as _, empty,
    http::tests::{acceptor, authority},
};

/// Client certificates and keys that openssl and Go generated.
const VECTORS: &str = include_str!("../../../pki/vectors/client-certificates.tsv");

/// A TLS server and the headers of the requests that it received.
struct Server {
    port: u16,
    ca: String,
    seen: Arc<Mutex<Vec<HeaderMap>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Server {
    /// Starts a server that answers with these statuses; the last one repeats.
    async fn start(statuses: &'static [u16], alt_names: Vec<AltName>) -> Self {
        let ca = authority();
        let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
        let acceptor = acceptor(&[b"http/1.1"], &ca, validity, alt_names);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let answer = service_fn(|request: Request<hyper::body::Incoming>| {
                    let mut kept = kept.lock();
                    let status = *statuses.get(kept.len()).or(statuses.last()).unwrap();
                    kept.push(request.headers().clone());
                    let response = Response::builder().status(status).body(empty()).unwrap();
                    std::future::ready(Ok::<_, std::convert::Infallible>(response))
                });
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            }
        });
        Self { port, ca: STANDARD.encode(ca.cert().to_pem()), seen, serving }
    }

    fn kubeconfig(&self, cluster: &str, user: &str) -> Kubeconfig {
        let (port, ca) = (self.port, &self.ca);
        let text = format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\nclusters: [{{name: c, cluster: {{\
             server: 'https://127.0.0.1:{port}', certificate-authority-data: {ca}{cluster}}}}}]\n"
        );
        Kubeconfig::parse(&text).unwrap()
    }

    /// Sends a request through `transport` and returns the status code.
    async fn ask(&self, transport: &HttpTransport) -> u16 {
        let request = Request::get("/api").body(empty()).unwrap();
        transport.send(request).await.unwrap().status().as_u16()
    }

    fn authorizations(&self) -> Vec<String> {
        let seen = self.seen.lock();
        let text = |headers: &HeaderMap| {
            headers.get("authorization").map_or("", |value| value.to_str().unwrap()).to_owned()
        };
        seen.iter().map(text).collect()
    }
}

fn of(config: &Kubeconfig) -> Result<HttpTransport, KubeconfigError> {
    let current = current_context(config)?;
    transport(&current, material(&current).and_then(|m| m.client_config()).map(ClientTls::from))
}

fn here() -> Vec<AltName> {
    vec![AltName::Ip([127, 0, 0, 1].into())]
}

#[tokio::test]
async fn asks_plugin_again_after_unauthorized() {
    let server = Server::start(&[200, 401, 200], here()).await;
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let script = format!(
        "echo >>{0}; n=$(wc -l <{0}); echo \"{{\\\"apiVersion\\\": \\\"client.authentication.k8s.io/v1\\\", \
         \\\"kind\\\": \\\"ExecCredential\\\", \\\"status\\\": {{\\\"token\\\": \\\"t$n\\\"}}}}\"",
        count.display()
    );
    let program = dir.path().join("plugin");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    let user = format!(
        "exec: {{command: /bin/sh, args: ['{}'], apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}",
        program.display()
    );
    let transport = of(&server.kubeconfig("", &user)).unwrap();
    for status in [200, 401, 200, 200] {
        assert_eq!(server.ask(&transport).await, status);
    }
    assert_eq!(server.authorizations(), ["Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2"]);
}

#[tokio::test]
async fn reaches_server_by_the_proxy_only() {
    let server = Server::start(&[200], here()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (upstream, tunnels) = (server.port, Arc::new(Mutex::new(0)));
    let counted = tunnels.clone();
    let proxy = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(near.read_u8().await.unwrap());
            }
            *counted.lock() += 1;
            let mut far = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
            near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
    });
    let cluster = format!(", proxy-url: 'http://127.0.0.1:{port}'");
    let transport = of(&server.kubeconfig(&cluster, "token: t")).unwrap();
    assert_eq!(server.ask(&transport).await, 200);
    assert_eq!((server.authorizations().len(), *tunnels.lock()), (1, 1));
    proxy.abort();

    let config = server.kubeconfig(", proxy-url: 'ftp://root:secret@127.0.0.1'", "");
    let refused = of(&config).err().unwrap().to_string();
    assert!(
        refused.starts_with("invalid 'proxy-url' \"ftp://127.0.0.1\" for cluster \"c\""),
        "{refused}"
    );
}

#[tokio::test]
async fn rejects_server_whose_name_is_in_the_common_name_alone() {
    let server = Server::start(&[200], Vec::new()).await;
    let transport = of(&server.kubeconfig("", "")).unwrap();
    let request = Request::get("/api").body(empty()).unwrap();
    let refused = transport.send(request).await.unwrap_err().to_string();
    let words = "x509: certificate relies on legacy Common Name field, use SANs instead";
    assert!(refused.contains(words), "{refused}");
}

/// Returns the certificate of a case and a key by its name, as PEM.
fn vector(case: &str, key: &str) -> TlsMaterial {
    let pem = |label: &str, base64: &str| {
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n").into_bytes()
    };
    let row = |name: &str, columns: usize| {
        let mut rows = VECTORS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        rows.find(|row| row.len() == columns && (row[0] == name || row[1] == name)).unwrap()
    };
    TlsMaterial {
        ca: None,
        certificate: Some(pem("CERTIFICATE", row(case, 6)[5].split(',').next().unwrap())),
        key: Some(pem("PRIVATE KEY", row(key, 3)[2])),
        insecure: true,
    }
}

#[test]
fn shows_client_certificate_of_version_1() {
    vector("openssl-without-extensions-rsa", "rsa").client_config().unwrap();
    vector("version-1", "p256").client_config().unwrap();
    vector("usual", "p256").client_config().unwrap();
    for (case, key, wanted) in [
        ("version-1", "self", "do they belong together?"),
        ("openssl-without-extensions-rsa1024", "rsa", "its RSA key has 1024 bits"),
    ] {
        let refused = vector(case, key).client_config().unwrap_err().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
}

#[tokio::test]
async fn anonymous_client_sends_no_credentials_of_the_user() {
    let server = Server::start(&[200], here()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    let user =
        "token: secret, as: admin, client-certificate: /nonexistent, client-key: /nonexistent";
    let config = server.kubeconfig("", user);
    std::fs::write(&path, config.to_yaml().unwrap()).unwrap();
    let client = Client::anonymous_from_kubeconfig_file(&path, "test").unwrap();
    let request = Request::get("/api").body(empty()).unwrap();
    assert_eq!(client.request(request).await.unwrap().status(), 200);
    let seen = server.seen.lock();
    assert!(seen.iter().all(|headers| !headers.contains_key("authorization")));
    assert!(seen.iter().all(|headers| !headers.keys().any(|k| k.as_str().contains("impersonate"))));
}
