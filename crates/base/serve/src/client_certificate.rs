//! Verification of client certificates in TLS handshakes.

use std::time::{Duration, UNIX_EPOCH};

use pki::{ClientCa, HandshakeKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// Accepts every client certificate whose key signed the handshake. Authentication verifies the chain, because
/// Kubernetes' clients expect a 401, as from Go's servers, and not a TLS alert.
#[derive(Debug)]
pub(crate) struct RequestCertificate {
    pub(crate) hints: Vec<DistinguishedName>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    /// The authorities that a client certificate must be signed by, like Go's `RequireAndVerifyClientCert`. `None`
    /// accepts all.
    pub(crate) required: Option<ClientCa>,
}

impl ClientCertVerifier for RequestCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        self.required.is_some()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(ca) = &self.required {
            let chain: Vec<_> = std::iter::once(leaf).chain(intermediates).cloned().collect();
            let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
            if let Err(error) = ca.check(&chain, now) {
                tracing::debug!(%error, "rejected a client certificate");
                return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        prove(leaf, |key| self.verify_tls12(message, key, signed))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        prove(leaf, |key| {
            verify_tls13_signature_with_raw_key(message, &key.info, signed, &self.algorithms)
        })
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies the handshake's signature with the key of a certificate. `pki` parses the key, because rustls does not
/// parse certificates of version 1.
///
/// A certificate without a supported key passes, too. [`pki::handshake_key`] guarantees that no authority accepts such
/// a certificate, so the client receives a 401 with a reason.
fn prove(
    leaf: &CertificateDer<'_>,
    verify: impl FnOnce(&HandshakeKey) -> Result<HandshakeSignatureValid, Error>,
) -> Result<HandshakeSignatureValid, Error> {
    match pki::handshake_key(leaf) {
        Ok(key) => verify(&key),
        Err(error) => {
            tracing::debug!(%error, "the key of a client certificate is not supported");
            Ok(HandshakeSignatureValid::assertion())
        }
    }
}

impl RequestCertificate {
    /// Verifies a signature of TLS 1.2, where the scheme does not determine the curve: any algorithm of the scheme that
    /// fits the key is accepted.
    fn verify_tls12(
        &self,
        message: &[u8],
        key: &HandshakeKey,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let of_scheme = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let Some((_, algorithms)) = of_scheme else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let bad = || Error::InvalidCertificate(CertificateError::BadSignature);
        let fitting =
            algorithms.iter().filter(|known| *known.public_key_alg_id() == *key.algorithm);
        let mut proofs =
            fitting.map(|known| known.verify_signature(&key.key, message, signed.signature()));
        proofs.any(|proof| proof.is_ok()).then(HandshakeSignatureValid::assertion).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests;
