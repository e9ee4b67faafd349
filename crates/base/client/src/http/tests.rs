use std::time::{Duration, SystemTime};

use http::Version;
use hyper::{server::conn, service::service_fn};
use hyper_util::rt::TokioIo;
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{TlsMaterial, empty, tls::HTTP2};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn authority() -> Authority {
    let long = Validity::starting(SystemTime::now() - 100 * HOUR, 200 * HOUR);
    Authority::create("test", KeyAlgorithm::EcdsaP256, long).unwrap()
}

/// Starts a server that accepts one of `protocols` in the handshake and answers with the HTTP version of the request.
async fn serve(protocols: &[&[u8]]) -> (String, AbortOnDropHandle<()>) {
    serve_with(protocols, &authority(), Validity::starting(SystemTime::now(), HOUR)).await
}

fn here() -> Vec<AltName> {
    vec![AltName::Ip([127, 0, 0, 1].into())]
}

pub(crate) fn acceptor(
    protocols: &[&[u8]],
    ca: &Authority,
    validity: Validity,
    alt_names: Vec<AltName>,
) -> TlsAcceptor {
    let spec = LeafSpec { subject: Subject::new("server"), alt_names, usage: Usage::Server };
    let (certificate, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.to_rustls()], key.to_rustls().unwrap())
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve_with(
    protocols: &[&[u8]],
    ca: &Authority,
    validity: Validity,
) -> (String, AbortOnDropHandle<()>) {
    let acceptor = acceptor(protocols, ca, validity, here());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let accept = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            let answer = service_fn(|request: Request<hyper::body::Incoming>| async move {
                let mut response = Response::new(empty());
                *response.version_mut() = request.version();
                Ok::<_, std::convert::Infallible>(response)
            });
            let io = TokioIo::new(stream);
            if is_http2 {
                conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(io, answer)
                    .await
                    .unwrap();
            } else {
                conn::http1::Builder::new().serve_connection(io, answer).await.unwrap();
            }
        }
    };
    (address, AbortOnDropHandle::new(tokio::spawn(accept)))
}

#[tokio::test]
async fn uses_protocol_that_the_server_chooses() {
    let cases: [(&[&[u8]], Version); 4] = [
        (&[b"h2", b"http/1.1"], Version::HTTP_2),
        (&[b"h2"], Version::HTTP_2),
        (&[b"http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ];
    for (protocols, version) in cases {
        let (address, _server) = serve(protocols).await;
        let tls = TlsMaterial { insecure: true, ..TlsMaterial::default() };
        let transport = HttpTransport::new(&address, tls.client_config().unwrap(), None).unwrap();
        for _ in 0..2 {
            let request = Request::get("/healthz").body(empty()).unwrap();
            let response = transport.send(request).await.unwrap();
            assert_eq!((response.status().as_u16(), response.version()), (200, version));
        }
    }
}

/// Starts a server that answers `requests` requests on each connection and counts connections.
async fn counting(requests: usize) -> (String, Arc<std::sync::atomic::AtomicUsize>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let acceptor =
        acceptor(&[b"http/1.1"], &authority(), Validity::starting(SystemTime::now(), HOUR), here());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let connections = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::spawn(async move {
                for _ in 0..requests {
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while !head.ends_with(b"\r\n\r\n") {
                        if stream.read(&mut byte).await.unwrap() == 0 {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    assert!(String::from_utf8(head).unwrap().contains("host: web.default.svc:443"));
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                }
                stream.shutdown().await.unwrap();
            });
        }
    });
    (address, connections)
}

#[tokio::test]
async fn reuses_connection_for_sequential_requests() {
    for (requests, wanted) in [(100, 1), (2, 3)] {
        let (address, connections) = counting(requests).await;
        let tls = TlsMaterial { insecure: true, ..TlsMaterial::default() };
        let transport = HttpTransport::new(&address, tls.client_config().unwrap(), None).unwrap();
        let transport = transport.for_host("web.default.svc", 443);
        for _ in 0..6 {
            let request = Request::get("/healthz").body(empty()).unwrap();
            let response = transport.send(request).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "ok");
        }
        assert_eq!(connections.load(std::sync::atomic::Ordering::Relaxed), wanted);
    }
}

#[tokio::test]
async fn closes_connection_of_unread_answer() {
    let (address, connections) = counting(100).await;
    let tls = TlsMaterial { insecure: true, ..TlsMaterial::default() };
    let transport = HttpTransport::new(&address, tls.client_config().unwrap(), None).unwrap();
    let transport = transport.for_host("web.default.svc", 443);
    for _ in 0..2 {
        let request = Request::get("/healthz").body(empty()).unwrap();
        drop(transport.send(request).await.unwrap());
    }
    assert_eq!(connections.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[tokio::test]
async fn mentions_clock_for_expired_or_future_certificate() {
    let ca = authority();
    let now = SystemTime::now();
    for (validity, wanted) in [
        (Validity::starting(now + HOUR, HOUR), "is not valid before"),
        (Validity::starting(now - 3 * HOUR, HOUR), "was valid until"),
    ] {
        let (address, _server) = serve_with(&[b"h2"], &ca, validity).await;
        let tls =
            TlsMaterial { ca: Some(ca.cert().to_pem().into_bytes()), ..TlsMaterial::default() };
        let transport = HttpTransport::new(&address, tls.client_config().unwrap(), None).unwrap();
        let request = Request::get("/healthz").body(empty()).unwrap();
        let error = transport.send(request).await.err().unwrap().to_string();
        assert!(
            error.contains(wanted)
                && error.contains("clock says 2")
                && error.contains("set the clock"),
            "{error}"
        );
    }
}
