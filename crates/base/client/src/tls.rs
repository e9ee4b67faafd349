use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use rustls::{
    CertificateError, ClientConfig, InconsistentKeys, RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};

use crate::server_verifier::{insecure_verifier, server_verifier};

/// A client's TLS settings. Settings from files are reloaded when the files change: new connections use the renewed
/// certificate, and a transport replaces its open connection.
#[derive(Clone)]
pub struct ClientTls(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<Configs>),
    Files(Arc<rt::FromFiles<Configs>>),
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

/// The ALPN protocol name of HTTP/2.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The TLS configurations by the offered ALPN protocols.
pub(crate) struct Configs {
    pub(crate) any: Arc<ClientConfig>,
    pub(crate) http1: Arc<ClientConfig>,
}

impl Configs {
    pub(crate) fn new(tls: ClientConfig) -> Self {
        let with = |protocols: &[&[u8]]| {
            let mut tls = tls.clone();
            tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(tls)
        };
        Self { any: with(&[HTTP2, HTTP1]), http1: with(&[HTTP1]) }
    }
}

impl From<ClientConfig> for ClientTls {
    fn from(tls: ClientConfig) -> Self {
        Self(Source::Fixed(Arc::new(Configs::new(tls))))
    }
}

impl ClientTls {
    /// Returns settings that accept any server certificate and present none. They are for servers without a known name
    /// and for connections without TLS.
    pub fn anyone() -> Self {
        static ANYONE: LazyLock<Arc<Configs>> = LazyLock::new(|| {
            let anyone = TlsMaterial { insecure: true, ..TlsMaterial::default() };
            Arc::new(Configs::new(anyone.client_config().expect("no certificate or key is given")))
        });
        Self(Source::Fixed(ANYONE.clone()))
    }

    /// Returns the settings from files, which are reloaded when a file changes.
    pub fn from_files(files: TlsFiles) -> Result<Self, TlsError> {
        let paths = [&files.ca, &files.certificate, &files.key];
        Self::following(paths.into_iter().flatten().cloned().collect(), move || files.read())
    }

    /// Returns the settings that `read` returns. `read` is called again when one of `files` changes.
    pub fn following(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<TlsMaterial, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let make = move || read()?.client_config().map(Configs::new);
        Ok(Self(Source::Files(Arc::new(rt::FromFiles::new(files, make)?))))
    }

    pub(crate) fn current(&self) -> Arc<Configs> {
        match &self.0 {
            Source::Fixed(configs) => configs.clone(),
            Source::Files(files) => files.current(),
        }
    }
}

/// The paths of a client's PEM files.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The CA bundle that signs server certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub certificate: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// Accept any server certificate (`insecure-skip-tls-verify`).
    pub insecure: bool,
}

impl TlsFiles {
    fn read(&self) -> Result<TlsMaterial, TlsError> {
        let read = |path: &Option<PathBuf>| {
            let read = |path: &PathBuf| {
                std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source })
            };
            path.as_ref().map(read).transpose()
        };
        Ok(TlsMaterial {
            ca: read(&self.ca)?,
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            insecure: self.insecure,
        })
    }
}

/// A client's TLS identity and trust, as PEM.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// The CA bundle that signs server certificates.
    pub ca: Option<Vec<u8>>,
    /// The client certificate.
    pub certificate: Option<Vec<u8>>,
    /// The key of the client certificate.
    pub key: Option<Vec<u8>>,
    /// Accept any server certificate (`insecure-skip-tls-verify`).
    pub insecure: bool,
}

/// The error of creating TLS settings.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error("reading the {part}: {detail}; is it PEM?")]
    Pem { part: &'static str, detail: String },
    #[error("using the client certificate and key: {0}; do they belong together?")]
    Identity(rustls::Error),
    #[error("using the client certificate: {0}")]
    ClientCertificate(#[from] pki::ClientError),
    #[error("no certificate authority is given, and the system has none")]
    NoAuthority,
}

impl TlsMaterial {
    /// Builds the rustls configuration. Without a CA it returns an error, unless `insecure` is set.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Identity)?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(insecure_verifier())
        } else {
            let mut roots = RootCertStore::empty();
            let ca = self.ca.as_deref().ok_or(TlsError::NoAuthority)?;
            let authorities = certificates(ca, "certificate authority")?;
            for certificate in &authorities {
                roots.add(certificate.clone()).map_err(|e| TlsError::Pem {
                    part: "certificate authority",
                    detail: e.to_string(),
                })?;
            }
            let verifier =
                server_verifier(roots, authorities).map_err(|_| TlsError::NoAuthority)?;
            builder.dangerous().with_custom_certificate_verifier(verifier)
        };
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let client_key = client_key(certificate, key, builder.crypto_provider())?;
                Ok(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(client_key))))
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }
}

/// Returns the client's chain and key. rustls cannot parse version 1 certificates, which servers accept, so `pki` reads
/// the public key that must match.
fn client_key(
    certificate: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|e| TlsError::Pem { part: "client key", detail: e.to_string() })?;
    let chain = certificates(certificate, "client certificate")?;
    let key = provider.key_provider.load_private_key(key).map_err(TlsError::Identity)?;
    let expected = pki::handshake_key(&chain[0])?.info;
    match key.public_key() {
        Some(actual) if actual != expected => {
            Err(TlsError::Identity(InconsistentKeys::KeyMismatch.into()))
        }
        _ => Ok(CertifiedKey::new(chain, key)),
    }
}

/// Explains a handshake error. Errors about dates mention the clock, because a wrong clock invalidates every
/// certificate. Certificates without alternative names get the message of Go's clients.
pub(crate) fn explain(error: &std::io::Error) -> Option<std::io::Error> {
    let Some(rustls::Error::InvalidCertificate(reason)) = error.get_ref()?.downcast_ref() else {
        return None;
    };
    if is_without_names(reason) {
        return Some(std::io::Error::other(
            "tls: failed to verify certificate: x509: certificate relies on legacy Common Name field, \
             use SANs instead",
        ));
    }
    let (time, bound) = match reason {
        CertificateError::NotValidYetContext { time, not_before } => {
            (time, format!("is not valid before {}", format_time(*not_before)))
        }
        CertificateError::ExpiredContext { time, not_after } => {
            (time, format!("was valid until {}", format_time(*not_after)))
        }
        _ => return None,
    };
    let now = format_time(*time);
    Some(std::io::Error::other(format!(
        "the server's certificate {bound}, and this machine's clock says {now}: set the clock if it is wrong; \
         otherwise renew the server's certificate"
    )))
}

/// Returns `true` if a server's certificate has no alternative names. A version 1 certificate cannot have any; rustls
/// reports that version only in an error's text.
fn is_without_names(reason: &CertificateError) -> bool {
    match reason {
        CertificateError::NotValidForNameContext { presented, .. } => presented.is_empty(),
        other => format!("{other:?}").contains("UnsupportedCertVersion"),
    }
}

fn format_time(at: UnixTime) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    api_meta::Timestamp::from_unix(seconds, 0).to_string()
}

fn certificates(pem: &[u8], part: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => {
            Err(TlsError::Pem { part, detail: "it holds no certificate".into() })
        }
        Ok(all) => Ok(all),
        Err(error) => Err(TlsError::Pem { part, detail: error.to_string() }),
    }
}
