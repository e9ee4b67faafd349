use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};

/// A client's TLS identity and trust, as PEM.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    pub ca: Option<Vec<u8>>,
    pub certificate: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
    /// `insecure-skip-tls-verify`.
    pub insecure: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading the {part}: {detail}; is it PEM?")]
    Pem { part: &'static str, detail: String },
    #[error("using the client certificate and key: {0}; do they belong together?")]
    Identity(rustls::Error),
    #[error("no certificate authority is given, and the system has none")]
    NoAuthority,
}

impl TlsMaterial {
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Identity)?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(Arc::new(
                aws_lc_rs::default_provider(),
            ))))
        } else {
            let mut roots = RootCertStore::empty();
            let ca = self.ca.as_deref().ok_or(TlsError::NoAuthority)?;
            for certificate in certificates(ca, "certificate authority")? {
                roots.add(certificate).map_err(|e| TlsError::Pem {
                    part: "certificate authority",
                    detail: e.to_string(),
                })?;
            }
            builder.with_root_certificates(roots)
        };
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|e| TlsError::Pem { part: "client key", detail: e.to_string() })?;
                builder
                    .with_client_auth_cert(certificates(certificate, "client certificate")?, key)
                    .map_err(TlsError::Identity)
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }
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

/// For `insecure-skip-tls-verify`: any certificate will do, but its key must have signed the handshake.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
