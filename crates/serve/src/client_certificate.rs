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

/// Accepts any client certificate whose key signed the handshake. Authentication verifies the chain, because Go's
/// servers, and so Kubernetes' clients, expect a 401 and not a TLS alert.
#[derive(Debug)]
pub(crate) struct AskForCertificate {
    pub(crate) hints: Vec<DistinguishedName>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    /// The authorities of a server that only speaks with their clients: Go's `RequireAndVerifyClientCert`.
    pub(crate) required: Option<ClientCa>,
}

impl ClientCertVerifier for AskForCertificate {
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
                tracing::debug!(%error, "a client certificate is not accepted");
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

/// Verifies the handshake's signature with the key of a certificate. The key is read by `pki`, since rustls reads no
/// certificate of version 1.
///
/// Without a key that can be verified the handshake succeeds as well. [`pki::handshake_key`] guarantees that no
/// authority accepts such a certificate, so that the client is answered 401 with a reason.
fn prove(
    leaf: &CertificateDer<'_>,
    verify: impl FnOnce(&HandshakeKey) -> Result<HandshakeSignatureValid, Error>,
) -> Result<HandshakeSignatureValid, Error> {
    match pki::handshake_key(leaf) {
        Ok(key) => verify(&key),
        Err(error) => {
            tracing::debug!(%error, "a client certificate cannot be accepted");
            Ok(HandshakeSignatureValid::assertion())
        }
    }
}

impl AskForCertificate {
    /// TLS 1.2 leaves the curve to the certificate, so each algorithm of the scheme that fits the key may have signed.
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
