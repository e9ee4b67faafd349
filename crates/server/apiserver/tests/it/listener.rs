//! Flags of the listener, by which a user recognises them: TLS, CORS, HSTS, shutdown, tokens.

use std::{sync::Arc, time::Duration};

use pki::{AltName, KeyAlgorithm, LeafSpec, Subject, Usage};
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls};

use crate::harness::{Identity, TestServer, start, validity};

/// Connects with a server name and returns the common name of the certificate and the TLS version.
async fn handshake(
    server: &TestServer,
    name: &str,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Result<(String, Option<rustls::ProtocolVersion>), std::io::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.authority.cert().to_rustls()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.api.address()).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let (_, session) = stream.get_ref();
    let leaf = session.peer_certificates().unwrap()[0].to_vec();
    let info = pki::Cert::from_der(leaf).unwrap().info().unwrap();
    Ok((info.subject.common_name, session.protocol_version()))
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_named_certificates_and_limits_tls_versions() {
    let first = start(|_| {}).await;
    let directory = first.directory.path().to_owned();
    let issue = |name: &str, common: &str| {
        let spec = LeafSpec {
            subject: Subject::new(common),
            alt_names: vec![AltName::dns(name)],
            usage: Usage::Server,
        };
        let issued = first.authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity()).unwrap();
        let files = serve::KeyPairFiles {
            certificate: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        };
        pki::write_cert(&files.certificate, &issued.0).unwrap();
        pki::write_key(&files.key, &issued.1).unwrap();
        files
    };
    let files = issue("api.example.com", "named");
    let named = vec![serve::NamedCertificate { files, patterns: Vec::new() }];
    let server = first
        .beside_with(|config| {
            config.serving.named_certificates = named;
            config.serving.tls = serve::TlsPolicy::new("VersionTLS13", &[]).unwrap();
        })
        .await;
    let all = [&rustls::version::TLS12, &rustls::version::TLS13];
    let (subject, version) = handshake(&server, "api.example.com", &all).await.unwrap();
    assert_eq!((subject.as_str(), version), ("named", Some(rustls::ProtocolVersion::TLSv1_3)));
    assert_eq!(handshake(&server, "127.0.0.1", &all).await.unwrap().0, "apiserver");
    handshake(&server, "api.example.com", &[&rustls::version::TLS12]).await.unwrap_err();
    assert!(handshake(&first, "127.0.0.1", &[&rustls::version::TLS12]).await.is_ok());
    // A renewed certificate is used by new connections.
    issue("api.example.com", "renewed");
    let renewed = || async {
        match handshake(&server, "api.example.com", &all).await.unwrap().0 {
            name if name == "renewed" => Ok(()),
            name => Err(name),
        }
    };
    let every = Duration::from_millis(50);
    rt::retry(Duration::from_secs(30), every, |_| true, renewed).await.unwrap();
    first.tasks.shutdown().stop();
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_browsers_of_allowed_origins() {
    let server = start(|config| {
        let pattern = regex::Regex::new("^https://console\\.example\\.com$").unwrap();
        config.serving.allowed_origins = vec![pattern];
        config.serving.strict_transport_security = "max-age=60; preload".to_owned();
    })
    .await;
    let nobody = server.tls(Identity::Nobody);
    let good = [("origin", "https://console.example.com")];
    // A preflight request has no credentials.
    let preflight = nobody.send("OPTIONS", "/api/v1/pods", &good, "").await;
    assert_eq!(preflight.code, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), "https://console.example.com");
    assert!(preflight.header("access-control-allow-methods").contains("PATCH"));
    let refused = nobody.send("GET", "/api/v1/pods", &good, "").await;
    assert_eq!((refused.code, refused.header("access-control-allow-credentials")), (403, "true"));
    assert_eq!(refused.header("strict-transport-security"), "max-age=60; preload");
    let evil = [("origin", "https://console.example.com.evil.org")];
    for method in ["OPTIONS", "GET"] {
        let answer = nobody.send(method, "/version", &evil, "").await;
        assert_eq!(answer.header("access-control-allow-origin"), "", "{method}");
        assert_ne!(answer.code, 204, "{method}");
    }
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn winds_down_before_it_stops() {
    let server = start(|config| {
        config.serving.shutdown_delay = Duration::from_secs(2);
        config.serving.shutdown_retry_after = true;
    })
    .await;
    let client = server.tls(Identity::Nobody);
    let until = |path: &'static str, code: u16| {
        let client = client.clone();
        let ask = move || {
            let client = client.clone();
            async move {
                let answer = client.get(path).await;
                if answer.code == code { Ok(answer) } else { Err(answer.code) }
            }
        };
        rt::retry(Duration::from_secs(30), Duration::from_millis(10), |_| true, ask)
    };
    until("/readyz", 200).await.unwrap();
    let api = server.api.clone();
    server.tasks.spawn("wind down", async move { api.wind_down().await });
    until("/readyz", 500).await.unwrap();
    // Requests are served during the delay, and rejected after it; probes go on.
    assert_eq!(client.get("/version").await.code, 200);
    let refused = until("/version", 429).await.unwrap();
    assert_eq!(refused.header("retry-after"), "5");
    assert_eq!(refused.body, "The apiserver is shutting down, please try again later.\n");
    assert_eq!(client.get("/livez").await.code, 200);
    assert_eq!(server.admin().get("/version").await.code, 200, "requests of its own loops");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_expiration_of_tokens_and_names_keys() {
    let server = start(|config| {
        config.jwks_uri = Some("https://keys.example.com/jwks".to_owned());
        config.max_token_expiration = Some(Duration::from_secs(7200));
    })
    .await;
    let api = server.admin();
    let namespace = api.namespace().await;
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    let long = api.post(&path, &json!({"spec": {"expirationSeconds": 86_400}})).await;
    let warning = r#"299 - "requested expiration of 86400 seconds shortened to 7200 seconds""#;
    assert_eq!(long.warnings(), [warning]);
    assert_eq!(long.ok()["spec"]["expirationSeconds"], 7200);
    let short = api.post(&path, &json!({"spec": {"expirationSeconds": 3600}})).await;
    assert_eq!(
        (short.warnings().len(), &short.ok()["spec"]["expirationSeconds"]),
        (0, &json!(3600))
    );
    let found = api.get("/.well-known/openid-configuration").await.ok();
    assert_eq!(found["jwks_uri"], "https://keys.example.com/jwks");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_watches_after_min_request_timeout() {
    let server =
        start(|config| config.serving.min_request_timeout = Duration::from_millis(200)).await;
    let watching = server.admin();
    // The body of a watch is complete when the watch ends.
    let watch = watching.get("/api/v1/namespaces?watch=true");
    let ended = tokio::time::timeout(Duration::from_secs(30), watch).await.unwrap();
    assert!(ended.body.starts_with(b"{\"type\":\"ADDED\""));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_features_by_gates() {
    let off = "APIResponseCompression=false,ComponentStatusz=false";
    let off = apiserver::FeatureGates::parse(off.split(',')).unwrap();
    let usual = start(|_| {}).await;
    let plain = usual.beside_with(|config| config.features = off).await;
    let namespace = usual.admin().namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let large = crate::harness::config_map("large", json!({"text": "x".repeat(200_000)}));
    usual.admin().post(&maps, &large).await.ok();
    let large = format!("{maps}/large");
    for (server, encoding, status) in [(&usual, "gzip", 200), (&plain, "", 404)] {
        let api = server.admin();
        let zip = [("accept-encoding", "gzip")];
        let listed = api.send("GET", &large, &zip, "").await;
        assert_eq!((listed.code, listed.header("content-encoding")), (200, encoding));
        assert_eq!(api.get("/statusz").await.code, status);
        let paths = api.get("/").await.ok().to_string();
        assert_eq!(paths.contains("/statusz"), status == 200);
        server.tasks.shutdown().stop();
    }
}
