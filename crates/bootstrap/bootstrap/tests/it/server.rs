//! An in-memory API server behind TLS, with the certificates that `init` made.

use std::{net::SocketAddr, path::Path, sync::Arc};

use client::{Body, Transport};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use testkit::FakeApi;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Serves `api` on a port of 127.0.0.1 until the test's runtime ends.
pub(crate) async fn serve(api: &FakeApi, certificates: &Path) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let cert = pki::read_cert(&certificates.join("apiserver.crt")).unwrap().to_rustls();
    let key = pki::read_key(&certificates.join("apiserver.key")).unwrap().to_rustls().unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = api.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, api) = (acceptor.clone(), api.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| answer(api.clone(), request));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

async fn answer(
    api: FakeApi,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, client::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    api.send(http::Request::from_parts(parts, client::full(bytes))).await
}
