use std::time::Duration;

use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the result of a handshake with a server whose certificate started `began` ago and is valid for an hour.
async fn handshake(began: Duration) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let long = Validity::starting(now - 10 * HOUR, 20 * HOUR);
    let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, long).unwrap();
    let spec = LeafSpec {
        subject: Subject::new("node"),
        alt_names: vec![AltName::dns("node")],
        usage: Usage::Server,
    };
    let validity = Validity::starting(now - began, HOUR);
    let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let file = dir.path().join("current.pem");
    std::fs::write(&file, cert.to_pem() + &key.to_pem().unwrap()).unwrap();
    let missing = dir.path().join("none.pem");
    let pairs = vec![(missing.clone(), missing), (file.clone(), file)];
    let server = ServerTls::from_first(TlsPolicy::default(), pairs).unwrap().current(None);
    let mut roots = RootCertStore::empty();
    roots.add(ca.cert().to_rustls()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = tokio::io::duplex(1 << 16);
    let client = tokio_rustls::TlsConnector::from(Arc::new(client));
    let asking = client.connect("node".try_into().unwrap(), near);
    let serving = tokio_rustls::TlsAcceptor::from(server).accept(far);
    let (_, served) = tokio::join!(asking, serving);
    served.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn does_not_serve_expired_certificate() {
    assert_eq!(handshake(Duration::ZERO).await, Ok(()));
    let refused = handshake(2 * HOUR).await.unwrap_err();
    assert!(refused.contains("no server certificate"), "{refused}");
}

/// Writes a certificate with a DNS name, and returns its files.
fn named_files(dir: &Path, ca: &Authority, name: &str) -> KeyPairFiles {
    let validity = Validity::starting(SystemTime::now(), HOUR);
    let alt_names = vec![AltName::dns(name)];
    let spec = LeafSpec { subject: Subject::new(name), alt_names, usage: Usage::Server };
    let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let file = dir.join(name.replace('*', "star"));
    std::fs::write(&file, cert.to_pem() + &key.to_pem().unwrap()).unwrap();
    KeyPairFiles { certificate: file.clone(), key: file }
}

#[test]
fn chooses_certificate_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity::starting(SystemTime::now(), HOUR);
    let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let files = |name: &str| named_files(dir.path(), &ca, name);
    let with = |name: &str, patterns: &[&str]| NamedCertificate {
        files: files(name),
        patterns: patterns.iter().map(ToString::to_string).collect(),
    };
    let named = [
        with("a.example.com", &[]),
        with("other", &["*.example.com", "b.example.com", "*.*.example.org"]),
        with("b.example.com", &[]),
    ];
    let policy = TlsPolicy::default();
    let all = NamedCertificates::load(&policy, &files("default"), &named).unwrap();
    let of = |name: &str| {
        let leaf = all.of(name).end_entity_cert().unwrap().to_vec();
        pki::Cert::from_der(leaf).unwrap().info().unwrap().subject.common_name
    };
    for (asked, served) in [
        ("a.example.com", "a.example.com"),
        ("A.Example.Com", "a.example.com"),
        ("b.example.com", "other"),
        ("c.example.com", "other"),
        ("x.y.example.org", "other"),
        ("y.example.org", "default"),
        ("d.c.example.com", "default"),
        ("example.com", "default"),
    ] {
        assert_eq!(of(asked), served, "{asked}");
    }
}

/// Returns the common name of the certificate that a server presents to a client at one of its addresses.
async fn presented(server: &ServerTls, address: &str, asked: &str) -> String {
    let config = server.current(Some(address.parse().unwrap()));
    let material = client::TlsMaterial { insecure: true, ..client::TlsMaterial::default() };
    let client = material.client_config().unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    let client = tokio_rustls::TlsConnector::from(Arc::new(client));
    let asking = client.connect(asked.to_owned().try_into().unwrap(), near);
    let (made, served) = tokio::join!(asking, tokio_rustls::TlsAcceptor::from(config).accept(far));
    served.unwrap();
    let leaf = made.unwrap().get_ref().1.peer_certificates().unwrap()[0].to_vec();
    pki::Cert::from_der(leaf).unwrap().info().unwrap().subject.common_name
}

#[tokio::test]
async fn chooses_certificate_by_address_for_clients_that_name_none() {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity::starting(SystemTime::now(), HOUR);
    let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let files = |name: &str| named_files(dir.path(), &ca, name);
    let inside = ["10.0.0.1", "fd00::1", "inside.example.com"].map(str::to_owned).to_vec();
    let named = vec![
        NamedCertificate { files: files("inside"), patterns: inside },
        NamedCertificate { files: files("outside.example.com"), patterns: Vec::new() },
    ];
    let policy = TlsPolicy::default();
    let server = ServerTls::from_named_files(policy, &files("default"), named, Vec::new());
    let server = server.unwrap();
    for (address, asked, wanted) in [
        ("10.0.0.1", "10.0.0.1", "inside"),
        ("::ffff:10.0.0.1", "10.0.0.1", "inside"),
        ("fd00::1", "fd00::1", "inside"),
        ("10.0.0.2", "10.0.0.2", "default"),
        // A name wins over the address.
        ("10.0.0.1", "outside.example.com", "outside.example.com"),
        ("10.0.0.1", "other.example.com", "default"),
        ("10.0.0.2", "inside.example.com", "inside"),
    ] {
        assert_eq!(presented(&server, address, asked).await, wanted, "{address} {asked}");
    }
}

#[test]
fn rejects_named_certificate_without_names_or_key() {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity::starting(SystemTime::now(), HOUR);
    let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let default = named_files(dir.path(), &ca, "default");
    let missing = KeyPairFiles { key: dir.path().join("none"), ..default.clone() };
    let nameless = {
        let spec =
            LeafSpec { subject: Subject::new("ip"), alt_names: Vec::new(), usage: Usage::Server };
        let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        let file = dir.path().join("ip");
        std::fs::write(&file, cert.to_pem() + &key.to_pem().unwrap()).unwrap();
        KeyPairFiles { certificate: file.clone(), key: file }
    };
    for (files, words) in [(missing, "reading"), (nameless, "names no DNS name")] {
        let named = vec![NamedCertificate { files, patterns: Vec::new() }];
        let made = ServerTls::from_named_files(TlsPolicy::default(), &default, named, Vec::new());
        let error = made.err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}
