//! The verification of server certificates.

use std::sync::Arc;

use pki::Cert;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{
        WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
    },
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Returns a verifier that trusts the authorities `roots`, and a server that presents one of the certificates `own`
/// itself.
///
/// # Errors
///
/// `roots` is empty.
pub fn server_verifier(
    roots: RootCertStore,
    own: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let standard =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Arc::new(Verifier { trust: Trust::Authorities { standard, own }, algorithms }))
}

/// Returns a verifier for `insecure-skip-tls-verify`: it accepts any certificate whose key signed the handshake.
pub(crate) fn insecure_verifier() -> Arc<dyn ServerCertVerifier> {
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    Arc::new(Verifier { trust: Trust::Anyone, algorithms })
}

/// The servers that a client trusts.
#[derive(Debug)]
enum Trust {
    Anyone,
    /// A server with a certificate of an authority, or one that presents a trusted certificate itself, as for Go's
    /// clients. The standard verifier rejects a CA certificate as a server certificate, but a self-signed server has
    /// only that one.
    Authorities {
        standard: Arc<WebPkiServerVerifier>,
        own: Vec<CertificateDer<'static>>,
    },
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Trust::Authorities { standard, own } = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let outcome =
            standard.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let is_own = || own.iter().any(|own| own.as_ref() == end_entity.as_ref());
        if !outcome.as_ref().is_err_and(is_authority) || !is_own() {
            return outcome;
        }
        // The standard verifier has checked the dates before this error, but neither usages nor names.
        if !is_for_servers(end_entity) {
            return Err(CertificateError::InvalidPurpose.into());
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns `true` for the error about a CA certificate as a server certificate. rustls reports the reason only in an
/// error's text.
fn is_authority(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(CertificateError::Other(_)))
        && format!("{error:?}").contains("CaUsedAsEndEntity")
}

fn is_for_servers(certificate: &CertificateDer<'_>) -> bool {
    Cert::from_der(certificate.to_vec()).and_then(|cert| cert.can_serve()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls_pki_types::pem::PemObject;

    use super::*;

    /// A self-signed CA certificate for `m.test`, valid for ten years from November 2026.
    const OWN: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBijCCATCgAwIBAgIUDAaBE/M4uoybVuTZkD8nf7n0b2AwCgYIKoZIzj0EAwIw\n\
        ETEPMA0GA1UEAwwGbS50ZXN0MB4XDTI2MTEyMTIwMzE1OFoXDTM2MTExODIwMzE1\n\
        OFowETEPMA0GA1UEAwwGbS50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
        GF+QNfIq6oSuwYThFWxsvj+7QI5sDI8dYISKvFT5GDyjXoGsREfXKkIfdMD9zdui\n\
        h4geDUDm3Gb1syBVYxZKuaNmMGQwHQYDVR0OBBYEFHfBkl8c+/pGQ5RVMwgiIV8v\n\
        pvCGMB8GA1UdIwQYMBaAFHfBkl8c+/pGQ5RVMwgiIV8vpvCGMBEGA1UdEQQKMAiC\n\
        Bm0udGVzdDAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIDMxod+S\n\
        aJicS2S92tlC4wi8so292eGic5NDPAu7DwJBAiEA6Hz8WeVOM05Cdbq2ujP6zV0+\n\
        RYUUgqwJ2iNPHOj1LZQ=\n\
        -----END CERTIFICATE-----";

    /// As [`OWN`], with an extended key usage for servers.
    const SERVER: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBnzCCAUWgAwIBAgIUYJ+kt7RxFn/BMSBNsrfvHGZd7+owCgYIKoZIzj0EAwIw\n\
        ETEPMA0GA1UEAwwGbS50ZXN0MB4XDTI2MTEyNzA1MTMxMloXDTM2MTEyNDA1MTMx\n\
        MlowETEPMA0GA1UEAwwGbS50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
        R22CWkezuw1h2NqyK+a5PDF+/hiY3JYJNAAqlMX/W1Lxdeh5QolHIchrPeGxbEQG\n\
        v+tG1Jy9WlqG8mY2mKxdbaN7MHkwHQYDVR0OBBYEFI1lb+JcKmu/vcWgXpQ4Yk67\n\
        Sq1XMB8GA1UdIwQYMBaAFI1lb+JcKmu/vcWgXpQ4Yk67Sq1XMBEGA1UdEQQKMAiC\n\
        Bm0udGVzdDAPBgNVHRMBAf8EBTADAQH/MBMGA1UdJQQMMAoGCCsGAQUFBwMBMAoG\n\
        CCqGSM49BAMCA0gAMEUCIAkzaHMHASqfV55qtz4wlV1eP17nNIIgALNMlxQWCepV\n\
        AiEAsfYJpUYPnJTaUTA7SzK5v3U8icsDkk6kGT52zKBIrqo=\n\
        -----END CERTIFICATE-----";

    /// As [`OWN`], with an extended key usage for clients only.
    const CLIENT: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBoDCCAUWgAwIBAgIUEGF9NCJmEehzdQxZN5GZvXWYwpIwCgYIKoZIzj0EAwIw\n\
        ETEPMA0GA1UEAwwGbS50ZXN0MB4XDTI2MTEyNzA1MTMxMloXDTM2MTEyNDA1MTMx\n\
        MlowETEPMA0GA1UEAwwGbS50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
        NFY/93cR+XvY3shgW/CAMWF6X0jsptpO/dS6aQHfSwvRPp2rdgktklRVVHzEchKj\n\
        Q64sYABZgmE+IgxZKF37QKN7MHkwHQYDVR0OBBYEFOCE4n7iCSVXDXi7ewbk4C3A\n\
        eiTgMB8GA1UdIwQYMBaAFOCE4n7iCSVXDXi7ewbk4C3AeiTgMBEGA1UdEQQKMAiC\n\
        Bm0udGVzdDAPBgNVHRMBAf8EBTADAQH/MBMGA1UdJQQMMAoGCCsGAQUFBwMCMAoG\n\
        CCqGSM49BAMCA0kAMEYCIQCp+Q5YmOf04zGi+WHYo2vpiklUkDJrtzRNUzXDjKnf\n\
        yAIhAOsWasl1RqzyXkPa4Pv563UXj4IeWIO5acupw8MpcGcx\n\
        -----END CERTIFICATE-----";

    fn trusts(pem: &str, is_own: bool, name: &str, year: u64) -> bool {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let own = if is_own { vec![certificate.clone()] } else { Vec::new() };
        let verifier = server_verifier(roots, own).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
        verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn trusts_self_signed_server() {
        assert!(trusts(OWN, true, "m.test", 2030));
        assert!(trusts(SERVER, true, "m.test", 2030));
        assert!(!trusts(CLIENT, true, "m.test", 2030), "for clients only");
        assert!(!trusts(OWN, true, "other.test", 2030), "another name");
        assert!(!trusts(OWN, true, "m.test", 2020), "its time has not begun");
        assert!(!trusts(OWN, true, "m.test", 2050), "its time is over");
        assert!(!trusts(OWN, false, "m.test", 2030), "not named itself");
        assert!(server_verifier(RootCertStore::empty(), Vec::new()).is_err());
    }
}
