use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::aws_lc_rs,
    sign::{CertifiedKey, SigningKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::ServerTls;

/// Certificates made by Go and openssl; `pki` compares verdicts with Go's.
const VECTORS: &str = include_str!("../../../pki/vectors/client-certificates.tsv");

type Chain = Vec<CertificateDer<'static>>;

struct Vectors {
    /// Roots (PEM), chain, and the name of the leaf's key by the name of the case.
    cases: BTreeMap<&'static str, (String, Chain, &'static str)>,
    /// Keys that a client can load.
    keys: BTreeMap<&'static str, Arc<dyn SigningKey>>,
}

fn der(base64: &str) -> Vec<u8> {
    let pem = format!("-----BEGIN X-----\n{base64}\n-----END X-----\n");
    pki::decode_all(&pem).unwrap().swap_remove(0).1
}

fn vectors() -> Vectors {
    let provider = aws_lc_rs::default_provider();
    let mut vectors = Vectors { cases: BTreeMap::new(), keys: BTreeMap::new() };
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["key", name, key] => {
                let key = PrivateKeyDer::try_from(der(key)).unwrap();
                if let Ok(key) = provider.key_provider.load_private_key(key) {
                    vectors.keys.insert(name, key);
                }
            }
            [name, _, _, key, roots, chain] => {
                let roots = roots.split(',').map(|root| pki::encode("CERTIFICATE", &der(root)));
                let chain = chain.split(',').map(|cert| der(cert).into()).collect();
                vectors.cases.insert(name, (roots.collect(), chain, key));
            }
            _ => panic!("{line}"),
        }
    }
    vectors
}

struct Server {
    roots: RootCertStore,
    certificate: String,
    key: String,
}

fn server() -> Server {
    let validity = Validity::starting(SystemTime::now(), std::time::Duration::from_secs(3600));
    let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let spec = LeafSpec {
        subject: Subject::new("server"),
        alt_names: vec![AltName::dns("server")],
        usage: Usage::Server,
    };
    let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(ca.cert().to_rustls()).unwrap();
    Server { roots, certificate: cert.to_pem(), key: key.to_pem().unwrap() }
}

impl Server {
    fn asking(&self) -> ServerTls {
        ServerTls::new(self.certificate.as_bytes(), self.key.as_bytes(), Vec::new()).unwrap()
    }

    fn mutual(&self, authorities: &str) -> ServerTls {
        let (certificate, key) = (self.certificate.as_bytes(), self.key.as_bytes());
        ServerTls::mutual(certificate, key, authorities.as_bytes()).unwrap()
    }

    /// Returns the certificates that the server has of a client after the handshake.
    async fn handshake(
        &self,
        tls: ServerTls,
        version: &'static SupportedProtocolVersion,
        chain: &Chain,
        key: &Arc<dyn SigningKey>,
    ) -> Result<usize, String> {
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain.clone(), key.clone()));
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_client_cert_resolver(Arc::new(shown));
        let (near, far) = tokio::io::duplex(1 << 18);
        let client = tokio_rustls::TlsConnector::from(Arc::new(client));
        let asking = client.connect("server".try_into().unwrap(), near);
        let serving = tokio_rustls::TlsAcceptor::from(tls.current(None)).accept(far);
        let (_, served) = tokio::join!(asking, serving);
        let served = served.map_err(|error| error.to_string())?;
        Ok(served.get_ref().1.peer_certificates().map_or(0, <[_]>::len))
    }
}

#[tokio::test]
async fn finishes_handshake_with_every_client_certificate() {
    let (vectors, server) = (vectors(), server());
    for (name, (_, chain, key)) in &vectors.cases {
        // A key that no client can load belongs to a certificate whose key no server can verify.
        let key = vectors.keys.get(key).unwrap_or_else(|| {
            assert!(pki::handshake_key(&chain[0]).is_err(), "{name}");
            &vectors.keys["p256"]
        });
        for version in [&TLS12, &TLS13] {
            let shown = server.handshake(server.asking(), version, chain, key).await;
            assert_eq!(shown, Ok(chain.len()), "{name}, {version:?}");
        }
    }
}

#[tokio::test]
async fn rejects_client_that_does_not_have_the_key() {
    let (vectors, server) = (vectors(), server());
    for name in ["usual", "version-1", "version-1-rsa", "version-1-ed25519", "p384"] {
        let (_, chain, key) = &vectors.cases[name];
        let other = if key.starts_with("rsa") { "p256" } else { "self" };
        for version in [&TLS12, &TLS13] {
            let shown = server.handshake(server.asking(), version, chain, &vectors.keys[other]);
            assert!(shown.await.is_err(), "{name}, {version:?}");
        }
    }
}

#[tokio::test]
async fn mutual_server_verifies_the_chain() {
    let (vectors, server) = (vectors(), server());
    for (name, accepted) in [
        ("usual", true),
        ("version-1", true),
        ("intermediate-usual", true),
        ("other-authority", false),
        ("extended-usage-server-only", false),
        ("rsa-1024", false),
        ("not-a-certificate", false),
    ] {
        let (roots, chain, key) = &vectors.cases[name];
        let key = vectors.keys.get(key).unwrap_or(&vectors.keys["p256"]);
        let shown = server.handshake(server.mutual(roots), &TLS13, chain, key).await;
        assert_eq!(shown.is_ok(), accepted, "{name}: {shown:?}");
    }
}
