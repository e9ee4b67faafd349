//! Verifies client certificates and returns the identity that they assert.

use std::{sync::Arc, time::SystemTime};

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use crate::{
    chain::{Certificate, Search},
    element::{BIT_STRING, Element, SEQUENCE},
    error::Error,
    fault::Fault,
    identity::Identity,
    pem, signature,
};

/// The error of a client certificate, or of a CA bundle for client certificates.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot read the client CA bundle: {0}; it must hold one or more PEM certificates")]
    Bundle(Arc<Error>),
    #[error("the client has no certificate; configure one that the client CA has signed")]
    Missing,
    #[error("cannot read the client's certificate: {0}")]
    Unreadable(Arc<Error>),
    #[error(
        "the client's certificate for {subject} is not acceptable: {cause}; it must be valid now, \
         signed by the client CA and meant for client authentication"
    )]
    Refused { subject: String, cause: Fault },
    #[error("the client's certificate for {0} has expired; renew it")]
    Expired(String),
}

/// The certificate authorities of client certificates.
#[derive(Clone, Debug)]
pub struct ClientCa {
    roots: Arc<[Certificate]>,
}

/// A client certificate whose chain was verified. Store it with the connection, because verification costs far more
/// than a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedClient {
    /// The identity of the client.
    pub identity: Identity,
    /// The end of the chain's validity.
    pub not_after: SystemTime,
}

impl ClientCa {
    /// Parses a PEM bundle of authorities, which must contain at least one.
    pub fn from_pem(pem: &[u8]) -> Result<Self, ClientError> {
        let bundle = |cause| ClientError::Bundle(Arc::new(cause));
        let text =
            std::str::from_utf8(pem).map_err(|e| bundle(Error::MalformedPem(e.to_string())))?;
        let blocks = pem::blocks_of(text, "CERTIFICATE", &["CERTIFICATE"]).map_err(bundle)?;
        let roots: Result<_, _> = blocks.iter().map(|(_, der)| Certificate::read(der)).collect();
        Ok(Self { roots: roots.map_err(bundle)? })
    }

    /// Verifies a chain, which begins with the client's own certificate. Returns `None` if the certificate names no
    /// user. A certificate that could name two users is rejected; see [`Cert::identity`](crate::Cert::identity).
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

    /// Verifies a chain without reading the user.
    pub fn check(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), ClientError> {
        let (leaf, intermediates) = chain.split_first().ok_or(ClientError::Missing)?;
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
            .map_err(|cause| ClientError::Refused { subject: leaf.cert().subject_text(), cause })
    }

    /// Returns the names of the authorities in DER. A server sends them to clients, which choose their certificate by
    /// them.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(|root| root.subject().to_vec()).collect()
    }
}

/// The public key of a client certificate, which must have signed the TLS handshake.
#[derive(Clone, Debug)]
pub struct HandshakeKey {
    /// The SubjectPublicKeyInfo, which contains the other fields.
    pub info: SubjectPublicKeyInfoDer<'static>,
    /// The content of the AlgorithmIdentifier, as rustls compares it.
    pub algorithm: Vec<u8>,
    /// The content of the subjectPublicKey.
    pub key: Vec<u8>,
}

/// Returns the public key that must have signed the TLS handshake.
///
/// # Errors
///
/// Rejects a certificate that cannot be parsed, and a key whose signatures cannot be verified. [`ClientCa::verify`]
/// calls the same function and so rejects every such certificate: a server may finish the handshake and answer 401.
pub fn handshake_key(leaf: &CertificateDer<'_>) -> Result<HandshakeKey, ClientError> {
    let leaf = readable_leaf(leaf)?;
    HandshakeKey::read(leaf.public_key())
        .map_err(|fault| unreadable(Error::MalformedCertificate(fault)))
}

impl HandshakeKey {
    fn read(info: &[u8]) -> Result<Self, Fault> {
        let what = "its public key";
        let mut parts = Element::only(info, SEQUENCE, what)?.elements();
        let algorithm = parts.expect(SEQUENCE, what)?.content;
        // The first byte is the number of unused bits, which is 0 for a key.
        let [0, key @ ..] = parts.expect(BIT_STRING, what)?.content else {
            return Err(Fault::MalformedKey);
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
        .map_err(|cause| ClientError::Refused { subject: leaf.cert().subject_text(), cause })?;
    Ok(leaf)
}

fn unreadable(error: Error) -> ClientError {
    ClientError::Unreadable(Arc::new(error))
}
