use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ConfigBuilder, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    server::{
        ResolvesServerCertUsingSni, WantsServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};

use crate::TlsPolicy;

/// Why nothing can be served over TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("reading the serving {part}: {detail}; is it PEM?")]
    Pem { part: &'static str, detail: String },
    #[error("using the serving certificate: {0}; does its key belong to it?")]
    Identity(#[from] rustls::Error),
}

/// A server's TLS identity. One that comes from files follows them: connections that begin after a renewal see the
/// renewed certificate.
#[derive(Clone)]
pub struct ServerTls(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<ServerConfig>),
    Files(Arc<rt::FromFiles<ServerConfig>>),
}

impl ServerTls {
    /// `client_authorities`: the subjects (DER) of the CAs whose client certificates are welcome, sent as a
    /// hint so that a client with several certificates picks the right one.
    pub fn new(
        certificate: &[u8],
        key: &[u8],
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        Self::new_under(&TlsPolicy::default(), certificate, key, client_authorities)
    }

    /// As [`Self::new`], of the versions and suites that a policy leaves.
    pub fn new_under(
        policy: &TlsPolicy,
        certificate: &[u8],
        key: &[u8],
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        let config = config(policy, certificate, key, client_authorities)?;
        Ok(Self(Source::Fixed(Arc::new(config))))
    }

    /// As [`Self::new`], but a client without a certificate of one of `authorities` (PEM) is turned away in the
    /// handshake, as Go's `RequireAndVerifyClientCert` does.
    pub fn mutual(certificate: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, TlsError> {
        let wrong = |detail: String| TlsError::Pem { part: "client CA", detail };
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities) {
            let authority = authority.map_err(|error| wrong(error.to_string()))?;
            roots.add(authority).map_err(|error| wrong(error.to_string()))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        let config = config_with(&TlsPolicy::default(), certificate, key, verifier)?;
        Ok(Self(Source::Fixed(Arc::new(config))))
    }

    /// The identity that two files hold, whenever they change.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        Self::from_files_under(TlsPolicy::default(), certificate, key, client_authorities)
    }

    /// As [`Self::from_files`], of the versions and suites that a policy leaves.
    pub fn from_files_under(
        policy: TlsPolicy,
        certificate: &Path,
        key: &Path,
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        let files = vec![certificate.to_owned(), key.to_owned()];
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let made = rt::FromFiles::new(files, move || {
            config(&policy, &read(&certificate)?, &read(&key)?, client_authorities.clone())
        })?;
        Ok(Self(Source::Files(Arc::new(made))))
    }

    /// The identity that the first of several pairs of certificate and key holds, whenever they change. While there is none
    /// of them, handshakes fail.
    pub fn from_first(policy: TlsPolicy, pairs: Vec<(PathBuf, PathBuf)>) -> Result<Self, TlsError> {
        let files = pairs.iter().flat_map(|(certificate, key)| [certificate, key]).cloned();
        let made = rt::FromFiles::new(files.collect(), move || {
            match pairs.iter().find(|(certificate, _)| certificate.exists()) {
                Some((certificate, key)) => {
                    config(&policy, &read(certificate)?, &read(key)?, Vec::new())
                }
                // Of no names it knows a certificate.
                None => {
                    let none = Arc::new(ResolvesServerCertUsingSni::new());
                    Ok(builder(&policy, asking(&policy, Vec::new()))?.with_cert_resolver(none))
                }
            }
        })?;
        Ok(Self(Source::Files(Arc::new(made))))
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
    let provider = policy.provider.clone();
    let hints = client_authorities.into_iter().map(DistinguishedName::from).collect();
    Arc::new(AskForCertificate { hints, provider })
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
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|e| TlsError::Pem { part: "certificate", detail: e.to_string() })?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|e| TlsError::Pem { part: "key", detail: e.to_string() })?;
    let mut config = builder(policy, verifier)?.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Takes any client certificate whose key signed the handshake. Whether it is trusted is for authentication to
/// say, because Go's servers, and so Kubernetes' clients, expect a 401 and not a TLS alert.
#[derive(Debug)]
struct AskForCertificate {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AskForCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
