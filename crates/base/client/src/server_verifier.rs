//! The verification of server certificates.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::aws_lc_rs,
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
    let standard =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    Ok(Arc::new(Verifier { standard, own }))
}

/// Also trusts a server that presents a trusted certificate itself, as Go's clients do. The standard verifier rejects a
/// CA certificate as a server certificate, but a self-signed server has only that one.
#[derive(Debug)]
struct Verifier {
    standard: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
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
        let outcome = self.standard.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        // All other errors, such as an expired certificate, stay errors.
        let authority =
            matches!(outcome, Err(Error::InvalidCertificate(CertificateError::Other(_))));
        if !authority || !self.own.iter().any(|own| own.as_ref() == end_entity.as_ref()) {
            return outcome;
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
        self.standard.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.standard.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.standard.supported_verify_schemes()
    }
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

    #[test]
    fn trusts_self_signed_server() {
        let certificate = CertificateDer::from_pem_slice(OWN.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let ask = |own: &[CertificateDer<'static>], name: &str, year: u64| {
            let verifier = server_verifier(roots.clone(), own.to_vec()).unwrap();
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
            verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
        };
        let own = [certificate.clone()];
        assert!(ask(&own, "m.test", 2030));
        assert!(!ask(&own, "other.test", 2030), "another name");
        assert!(!ask(&own, "m.test", 2050), "its time is over");
        assert!(!ask(&[], "m.test", 2030), "not named itself");
        assert!(server_verifier(RootCertStore::empty(), Vec::new()).is_err());
    }
}
