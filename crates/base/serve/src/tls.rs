//! The TLS identity of a server, fixed or reloaded from files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    ConfigBuilder, DistinguishedName, ServerConfig,
    server::{ClientHello, ResolvesServerCert, WantsServerCert, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::{client_certificate::RequestCertificate, policy::TlsPolicy};

/// The error of a serving certificate, its key, or the client authorities.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("reading the serving {part}: {detail}; is it PEM?")]
    Pem { part: &'static str, detail: String },
    #[error("using the serving certificate: {0}; does its key belong to it?")]
    Identity(#[from] rustls::Error),
}

/// The TLS identity of a server. An identity from files is reloaded: new connections use a renewed certificate.
#[derive(Clone)]
pub struct ServerTls(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<ServerConfig>),
    Files(Arc<rt::FromFiles<ServerConfig>>),
}

impl ServerTls {
    /// Creates an identity from PEM. `client_authorities` are the subjects (DER) of the client CAs, sent as a hint for
    /// clients with several certificates.
    pub fn new(
        certificate: &[u8],
        key: &[u8],
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        Self::new_under(&TlsPolicy::default(), certificate, key, client_authorities)
    }

    /// Like [`Self::new`], limited to the versions and cipher suites of a policy.
    pub fn new_under(
        policy: &TlsPolicy,
        certificate: &[u8],
        key: &[u8],
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        let config = config(policy, certificate, key, client_authorities)?;
        Ok(Self(Source::Fixed(Arc::new(config))))
    }

    /// Like [`Self::new`], but clients without a certificate of `authorities` (PEM) are rejected in the handshake, like
    /// Go's `RequireAndVerifyClientCert`.
    pub fn mutual(certificate: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, TlsError> {
        let policy = TlsPolicy::default();
        let wrong =
            |e: pki::ClientError| TlsError::Pem { part: "client CA", detail: e.to_string() };
        let ca = pki::ClientCa::from_pem(authorities).map_err(wrong)?;
        let verifier = RequestCertificate {
            hints: ca.authorities().into_iter().map(DistinguishedName::from).collect(),
            algorithms: policy.provider.signature_verification_algorithms,
            required: Some(ca),
        };
        let config = config_with(&policy, certificate, key, Arc::new(verifier))?;
        Ok(Self(Source::Fixed(Arc::new(config))))
    }

    /// Loads the identity from two files, and reloads it when they change.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        Self::from_files_under(TlsPolicy::default(), certificate, key, client_authorities)
    }

    /// Like [`Self::from_files`], limited to the versions and cipher suites of a policy.
    pub fn from_files_under(
        policy: TlsPolicy,
        certificate: &Path,
        key: &Path,
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        let files = vec![certificate.to_owned(), key.to_owned()];
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let reloaded = rt::FromFiles::new(files, move || {
            config(&policy, &read(&certificate)?, &read(&key)?, client_authorities.clone())
        })?;
        Ok(Self(Source::Files(Arc::new(reloaded))))
    }

    /// Loads the identity from the first existing pair of certificate and key files, and reloads it when they change.
    /// Without a pair, or with an expired certificate, handshakes fail until a new one is issued, like upstream's
    /// kubelet. In contrast, [`Self::from_files`] serves an expired certificate, as upstream does for files of an
    /// administrator.
    pub fn from_first(policy: TlsPolicy, pairs: Vec<(PathBuf, PathBuf)>) -> Result<Self, TlsError> {
        let files = pairs.iter().flat_map(|(certificate, key)| [certificate, key]).cloned();
        let reloaded = rt::FromFiles::new(files.collect(), move || {
            let pair = pairs.iter().find(|(certificate, _)| certificate.exists());
            let issued = pair.map(|(certificate, key)| -> Result<_, TlsError> {
                let (chain, key) = parse_pair(&read(certificate)?, &read(key)?)?;
                Ok(CertifiedKey::from_der(chain, key, &policy.provider)?)
            });
            let issued = Arc::new(ExpiringCertificate::new(issued.transpose()?)?);
            let builder = builder(&policy, asking(&policy, Vec::new()))?;
            Ok::<_, TlsError>(with_protocols(builder.with_cert_resolver(issued)))
        })?;
        Ok(Self(Source::Files(Arc::new(reloaded))))
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        match &self.0 {
            Source::Fixed(config) => config.clone(),
            Source::Files(files) => files.current(),
        }
    }
}

fn config(
    policy: &TlsPolicy,
    certificate: &[u8],
    key: &[u8],
    client_authorities: Vec<Vec<u8>>,
) -> Result<ServerConfig, TlsError> {
    config_with(policy, certificate, key, asking(policy, client_authorities))
}

fn asking(policy: &TlsPolicy, client_authorities: Vec<Vec<u8>>) -> Arc<dyn ClientCertVerifier> {
    let hints = client_authorities.into_iter().map(DistinguishedName::from).collect();
    let algorithms = policy.provider.signature_verification_algorithms;
    Arc::new(RequestCertificate { hints, algorithms, required: None })
}

fn builder(
    policy: &TlsPolicy,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, TlsError> {
    Ok(ServerConfig::builder_with_provider(policy.provider.clone())
        .with_protocol_versions(policy.versions())?
        .with_client_cert_verifier(verifier))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn config_with(
    policy: &TlsPolicy,
    certificate: &[u8],
    key: &[u8],
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, TlsError> {
    let (chain, key) = parse_pair(certificate, key)?;
    Ok(with_protocols(builder(policy, verifier)?.with_single_cert(chain, key)?))
}

type Chain = Vec<CertificateDer<'static>>;

fn parse_pair(certificate: &[u8], key: &[u8]) -> Result<(Chain, PrivateKeyDer<'static>), TlsError> {
    let wrong =
        |part| move |e: rustls_pki_types::pem::Error| TlsError::Pem { part, detail: e.to_string() };
    let chain: Result<Chain, _> = CertificateDer::pem_slice_iter(certificate).collect();
    Ok((
        chain.map_err(wrong("certificate"))?,
        PrivateKeyDer::from_pem_slice(key).map_err(wrong("key"))?,
    ))
}

fn with_protocols(mut config: ServerConfig) -> ServerConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A certificate that is served until it expires, if there is one.
#[derive(Debug)]
struct ExpiringCertificate(Option<(Arc<CertifiedKey>, SystemTime)>);

impl ExpiringCertificate {
    fn new(issued: Option<CertifiedKey>) -> Result<Self, TlsError> {
        let with_end = |issued: CertifiedKey| {
            let leaf = issued.end_entity_cert()?.to_vec();
            let info = pki::Cert::from_der(leaf).and_then(|cert| cert.info());
            let wrong =
                |e: pki::Error| TlsError::Pem { part: "certificate", detail: e.to_string() };
            Ok((Arc::new(issued), info.map_err(wrong)?.not_after))
        };
        issued.map(with_end).transpose().map(Self)
    }
}

impl ResolvesServerCert for ExpiringCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (issued, ends) = self.0.as_ref()?;
        if rt::now() > *ends {
            tracing::warn!(
                ended = %pki::format_time(*ends),
                "the serving certificate has expired; none is served"
            );
            return None;
        }
        Some(issued.clone())
    }
}

#[cfg(test)]
mod tests {
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
        let server = ServerTls::from_first(TlsPolicy::default(), pairs).unwrap().current();
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
}
