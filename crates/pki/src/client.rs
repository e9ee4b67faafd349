//! Client certificates: who verified them, and whom they speak for.

use std::{fmt::Display, sync::Arc, time::SystemTime};

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use crate::{
    chain::{Certificate, Search},
    element::{BIT_STRING, Element, Fault, SEQUENCE},
    pem, signature,
};

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
    roots: Arc<[Certificate]>,
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
        let text = std::str::from_utf8(pem).map_err(|e| bundle(&e))?;
        let blocks =
            pem::blocks_of(text, "CERTIFICATE", &["CERTIFICATE"]).map_err(|e| bundle(&e))?;
        let roots: Result<_, _> = blocks.iter().map(|(_, der)| Certificate::read(der)).collect();
        Ok(Self { roots: roots.map_err(|e| bundle(&e))? })
    }

    /// Verifies a chain, the client's own certificate first. `None` when it names no user. A certificate that could be
    /// taken for two users is refused, as [`Cert::identity`](crate::Cert::identity) says.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Option<VerifiedClient>, ClientError> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        let leaf = readable_leaf(leaf)?;
        let not_after = self.verify_chain(&leaf, intermediates, now)?;
        let identity = leaf.cert().identity().map_err(unreadable)?;
        Ok(identity.map(|identity| VerifiedClient { identity, not_after }))
    }

    /// Verifies a chain, whomever it names.
    pub fn check(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), ClientError> {
        let nothing = || ClientError::Unreadable("there is none".to_owned());
        let (leaf, intermediates) = chain.split_first().ok_or_else(nothing)?;
        self.verify_chain(&readable_leaf(leaf)?, intermediates, now).map(drop)
    }

    fn verify_chain(
        &self,
        leaf: &Certificate,
        intermediates: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<SystemTime, ClientError> {
        let intermediates: Result<Vec<_>, _> =
            intermediates.iter().map(|der| Certificate::read(der)).collect();
        let intermediates = intermediates.map_err(unreadable)?;
        Search::new(&self.roots, &intermediates, now)
            .verify(leaf)
            .map_err(|cause| ClientError::Refused { subject: leaf.cert().described(), cause })
    }

    /// The names of the authorities in DER, which a server tells clients so that they choose the right certificate.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(|root| root.subject().to_vec()).collect()
    }
}

/// The public key that a client certificate's holder signs TLS handshakes with.
#[derive(Clone, Debug)]
pub struct HandshakeKey {
    /// The SubjectPublicKeyInfo, of which the other fields are parts.
    pub info: SubjectPublicKeyInfoDer<'static>,
    /// The content of the AlgorithmIdentifier, as `rustls` compares it.
    pub algorithm: Vec<u8>,
    /// The content of the subjectPublicKey.
    pub key: Vec<u8>,
}

/// Returns the key that a client certificate's holder signs TLS handshakes with.
///
/// # Errors
///
/// A certificate that cannot be parsed, and a key whose signatures cannot be verified. [`ClientCa::verify`] rejects every
/// such certificate, because both call the same function: a server may finish the handshake and answer 401.
pub fn handshake_key(leaf: &CertificateDer<'_>) -> Result<HandshakeKey, ClientError> {
    let leaf = readable_leaf(leaf)?;
    HandshakeKey::read(leaf.public_key()).map_err(ClientError::Unreadable)
}

impl HandshakeKey {
    fn read(info: &[u8]) -> Result<Self, Fault> {
        let what = "its public key";
        let mut parts = Element::only(info, SEQUENCE, what)?.elements();
        let algorithm = parts.expect(SEQUENCE, what)?.content;
        // The first byte counts the bits that are not used, of which a key has none.
        let [0, key @ ..] = parts.expect(BIT_STRING, what)?.content else {
            return Err(format!("{what} is malformed"));
        };
        parts.end(what)?;
        let (algorithm, key) = (algorithm.to_vec(), key.to_vec());
        Ok(Self { info: info.to_vec().into(), algorithm, key })
    }
}

fn readable_leaf(der: &CertificateDer<'_>) -> Result<Certificate, ClientError> {
    let leaf = Certificate::read(der).map_err(unreadable)?;
    let key = leaf.public_key();
    signature::check_key(key)
        .and_then(|()| HandshakeKey::read(key))
        .map_err(|cause| ClientError::Refused { subject: leaf.cert().described(), cause })?;
    Ok(leaf)
}

fn unreadable(error: crate::Error) -> ClientError {
    ClientError::Unreadable(error.to_string())
}
