//! The TLS identity of a server, fixed or reloaded from files.

use std::{
    collections::HashMap,
    net::IpAddr,
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
    #[error("using {}: {source}", path.display())]
    Named { path: PathBuf, source: rustls::Error },
    #[error("{} names no DNS name or address; give domain patterns with it", .0.display())]
    NoNames(PathBuf),
}

/// The TLS identity of a server. An identity from files is reloaded: new connections use a renewed certificate.
#[derive(Clone)]
pub struct ServerTls(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<ServerConfig>),
    Files(Arc<rt::FromFiles<ServerConfig>>),
    Named(Arc<rt::FromFiles<NamedConfigs>>),
}

/// The settings of a server with several certificates.
struct NamedConfigs {
    default: Arc<ServerConfig>,
    /// The settings for connections to an address that has a certificate of its own.
    by_address: HashMap<IpAddr, Arc<ServerConfig>>,
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

    /// Like [`Self::from_files_under`], with further certificates for the names that clients request (SNI).
    pub fn from_named_files(
        policy: TlsPolicy,
        default: &KeyPairFiles,
        named: Vec<NamedCertificate>,
        client_authorities: Vec<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        let pairs = named.iter().map(|named| &named.files).chain([default]);
        let files = pairs.flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]).collect();
        let default = default.clone();
        let reloaded = rt::FromFiles::new(files, move || {
            let certificates = Arc::new(NamedCertificates::load(&policy, &default, &named)?);
            let builder = builder(&policy, asking(&policy, client_authorities.clone()))?;
            let whole = with_protocols(builder.with_cert_resolver(certificates.clone()));
            let of_address = |(address, certificate): (&IpAddr, &Arc<CertifiedKey>)| {
                let (named, own) = (certificates.clone(), certificate.clone());
                let mut config = whole.clone();
                config.cert_resolver = Arc::new(AddressCertificate { named, own });
                (*address, Arc::new(config))
            };
            let by_address = certificates.addresses.iter().map(of_address).collect();
            Ok::<_, TlsError>(NamedConfigs { default: Arc::new(whole), by_address })
        })?;
        Ok(Self(Source::Named(Arc::new(reloaded))))
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

    /// Returns the settings of a connection to this address of the server.
    pub(crate) fn current(&self, address: Option<IpAddr>) -> Arc<ServerConfig> {
        match &self.0 {
            Source::Fixed(config) => config.clone(),
            Source::Files(files) => files.current(),
            Source::Named(files) => {
                let configs = files.current();
                let own =
                    address.and_then(|address| configs.by_address.get(&address.to_canonical()));
                own.unwrap_or(&configs.default).clone()
            }
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

/// The PEM files of a certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The file with the certificate chain.
    pub certificate: PathBuf,
    /// The file with the key.
    pub key: PathBuf,
}

impl KeyPairFiles {
    fn load(&self, policy: &TlsPolicy) -> Result<CertifiedKey, TlsError> {
        let (chain, key) = parse_pair(&read(&self.certificate)?, &read(&self.key)?)?;
        let path = self.certificate.clone();
        CertifiedKey::from_der(chain, key, &policy.provider)
            .map_err(|source| TlsError::Named { path, source })
    }
}

/// A certificate for the names that match its patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// The files of the certificate and its key.
    pub files: KeyPairFiles,
    /// DNS names, whose first labels may be `*`, and addresses of the server. If empty, those in the certificate.
    pub patterns: Vec<String>,
}

/// The certificates of a server by the name that the client requests. A name without a wildcard comes before one with,
/// and given patterns before names of certificates. Within these, the first certificate wins.
#[derive(Debug)]
struct NamedCertificates {
    default: Arc<CertifiedKey>,
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// The certificates by patterns that begin with `*.`.
    wildcards: HashMap<String, Arc<CertifiedKey>>,
    /// The certificates by address of the server, for clients that request no name.
    addresses: HashMap<IpAddr, Arc<CertifiedKey>>,
}

impl NamedCertificates {
    fn load(
        policy: &TlsPolicy,
        default: &KeyPairFiles,
        named: &[NamedCertificate],
    ) -> Result<Self, TlsError> {
        let mut all = Self {
            default: Arc::new(default.load(policy)?),
            exact: HashMap::new(),
            wildcards: HashMap::new(),
            addresses: HashMap::new(),
        };
        let mut extracted = Vec::new();
        for NamedCertificate { files, patterns } in named {
            let certificate = Arc::new(files.load(policy)?);
            if patterns.is_empty() {
                extracted.push((names(files, &certificate)?, certificate));
            } else {
                all.add(patterns, &certificate);
            }
        }
        extracted.iter().for_each(|(names, certificate)| all.add(names, certificate));
        Ok(all)
    }

    fn add(&mut self, names: &[String], certificate: &Arc<CertifiedKey>) {
        for name in names {
            if let Ok(address) = name.parse::<IpAddr>() {
                self.addresses.entry(address.to_canonical()).or_insert_with(|| certificate.clone());
                continue;
            }
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            let place = if name.starts_with("*.") { &mut self.wildcards } else { &mut self.exact };
            place.entry(name).or_insert_with(|| certificate.clone());
        }
    }

    /// Returns the certificate for a name. Like Go, a wildcard stands for one label each.
    fn of(&self, name: &str) -> &Arc<CertifiedKey> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let exact = self.exact.get(&name);
        exact.or_else(|| self.wildcard(&name)).unwrap_or(&self.default)
    }

    fn wildcard(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let mut stars = String::new();
        let mut rest = name;
        while let Some((_, parent)) = rest.split_once('.').filter(|_| !self.wildcards.is_empty()) {
            stars.push_str("*.");
            if let Some(found) = self.wildcards.get(&(stars.clone() + parent)) {
                return Some(found);
            }
            rest = parent;
        }
        None
    }
}

impl ResolvesServerCert for NamedCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(hello.server_name().map_or(&self.default, |name| self.of(name)).clone())
    }
}

/// The certificates of a server for connections to an address with a certificate of its own. Clients that connect to an
/// address ask for no name.
#[derive(Debug)]
struct AddressCertificate {
    named: Arc<NamedCertificates>,
    own: Arc<CertifiedKey>,
}

impl ResolvesServerCert for AddressCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(hello.server_name().map_or(&self.own, |name| self.named.of(name)).clone())
    }
}

/// Returns the DNS names and addresses of a certificate.
fn names(files: &KeyPairFiles, certificate: &CertifiedKey) -> Result<Vec<String>, TlsError> {
    let path = &files.certificate;
    let leaf = certificate.end_entity_cert();
    let leaf = leaf.map_err(|source| TlsError::Named { path: path.clone(), source })?.to_vec();
    let info = pki::Cert::from_der(leaf).and_then(|cert| cert.info());
    let wrong = |e: pki::Error| TlsError::Pem { part: "certificate", detail: e.to_string() };
    let names: Vec<String> =
        info.map_err(wrong)?.alt_names.into_iter().filter_map(server_name).collect();
    if names.is_empty() { Err(TlsError::NoNames(path.clone())) } else { Ok(names) }
}

fn server_name(name: pki::AltName) -> Option<String> {
    match name {
        pki::AltName::Dns(name) => Some(name),
        pki::AltName::Ip(address) => Some(address.to_string()),
        _ => None,
    }
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
mod tests;
