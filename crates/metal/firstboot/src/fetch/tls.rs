//! TLS trust: the system's authorities, and those that a config adds.

use std::{fs, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};

use super::url::displayed;
use crate::error::FetchError;

const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Clone, Debug)]
pub(crate) struct Roots {
    store: RootCertStore,
    /// The certificates that configs have added.
    added: Vec<CertificateDer<'static>>,
}

impl Roots {
    pub(crate) fn system() -> Self {
        let mut store = RootCertStore::empty();
        // A machine without a bundle trusts only the config's certificates.
        for certificate in
            CertificateDer::pem_slice_iter(&fs::read(SYSTEM).unwrap_or_default()).flatten()
        {
            // Unparsable old roots are skipped.
            let _ = store.add(certificate);
        }
        Self { store, added: Vec::new() }
    }

    pub(crate) fn add(&mut self, origin: &str, bundle: &[u8]) -> Result<(), FetchError> {
        let failed =
            |reason: String| FetchError::Certificates { origin: displayed(origin), reason };
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            self.store.add(certificate.clone()).map_err(|error| failed(error.to_string()))?;
            self.added.push(certificate);
            count += 1;
        }
        if count == 0 {
            return Err(failed("it contains no certificate in PEM".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder();
        let store = Arc::new(self.store.clone());
        let standard = WebPkiServerVerifier::builder(store.clone()).build();
        let builder = match standard {
            Ok(standard) if !self.added.is_empty() => {
                let verifier = Verifier { standard, added: self.added.clone() };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            _ => builder.with_root_certificates(store),
        };
        Arc::new(builder.with_no_client_auth())
    }
}

/// Also trusts a server that presents an added certificate itself. The standard verifier rejects a CA certificate as a
/// server certificate, but a self-signed server has only that one.
#[derive(Debug)]
struct Verifier {
    standard: Arc<WebPkiServerVerifier>,
    added: Vec<CertificateDer<'static>>,
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
        if !authority || !self.added.iter().any(|added| added.as_ref() == end_entity.as_ref()) {
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
    fn trusts_server_with_added_certificate() {
        // Another test may have installed the provider.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let certificate = CertificateDer::from_pem_slice(OWN.as_bytes()).unwrap();
        let mut store = RootCertStore::empty();
        store.add(certificate.clone()).unwrap();
        let standard = WebPkiServerVerifier::builder(Arc::new(store)).build().unwrap();
        let ask = |added: &[CertificateDer<'static>], name: &str, year: u64| {
            let verifier = Verifier { standard: standard.clone(), added: added.to_vec() };
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
            verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
        };
        let added = [certificate.clone()];
        assert!(ask(&added, "m.test", 2030));
        assert!(!ask(&added, "other.test", 2030), "another name");
        assert!(!ask(&added, "m.test", 2050), "its time is over");
        assert!(!ask(&[], "m.test", 2030), "not added by a config");
    }
}
