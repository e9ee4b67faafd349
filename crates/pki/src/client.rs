//! Client certificates: who verified them, and whom they speak for.

use std::{
    fmt::Display,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use crate::Cert;

/// Who a client certificate says its holder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The common name.
    pub name: String,
    /// The organisations.
    pub groups: Vec<String>,
    /// Kubernetes' own attribute 1.3.6.1.4.1.57683.2; empty where the certificate has none.
    pub uid: String,
    /// Which certificate it was, for audit: `X509SHA256=` and the hash of the certificate.
    pub credential_id: String,
}

/// Why a client certificate, or a bundle of authorities for them, is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("cannot read the client CA bundle: {0}; it must hold one or more PEM certificates")]
    Bundle(String),
    #[error("cannot read the client's certificate: {0}")]
    Unreadable(String),
    #[error(
        "the client's certificate for {subject} is not acceptable: {cause}; it must be valid now, signed by the client CA and meant for client authentication"
    )]
    Refused { subject: String, cause: String },
    #[error("the client's certificate for {0} has expired; renew it")]
    Expired(String),
}

/// The authorities that sign client certificates.
#[derive(Clone, Debug)]
pub struct ClientCa {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A certificate whose chain was verified. Keep it with the connection: verifying costs far more than a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedClient {
    pub identity: Identity,
    pub not_after: SystemTime,
}

impl ClientCa {
    /// Reads the PEM bundle of authorities, which must hold one at least.
    pub fn from_pem(pem: &[u8]) -> Result<Self, ClientError> {
        let bundle = |cause: &dyn Display| ClientError::Bundle(cause.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|e| bundle(&e))?).map_err(|e| bundle(&e))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { verifier: verifier.map_err(|e| bundle(&e))? })
    }

    /// Verifies a chain, the client's own certificate first. `None` when it names no user. A certificate that could be
    /// taken for two users is refused, as [`Cert::identity`] says.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Option<VerifiedClient>, ClientError> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        let unreadable = |error: crate::Error| ClientError::Unreadable(error.to_string());
        let cert = Cert::from_der(leaf.to_vec()).map_err(unreadable)?;
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        self.verifier.verify_client_cert(leaf, intermediates, at).map_err(|e| {
            ClientError::Refused { subject: cert.described(), cause: e.to_string() }
        })?;
        let not_after = cert.not_after().map_err(unreadable)?;
        let identity = cert.identity().map_err(unreadable)?;
        Ok(identity.map(|identity| VerifiedClient { identity, not_after }))
    }

    /// The names of the authorities in DER, which a server tells clients so that they choose the right certificate.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.verifier.root_hint_subjects().iter().map(|subject| subject.as_ref().to_vec()).collect()
    }
}
