//! TLS trust: the system's authorities, and those that a config adds.

use std::{fs, sync::Arc};

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};

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
        let builder = match client::server_verifier(self.store.clone(), self.added.clone()) {
            Ok(verifier) => builder.dangerous().with_custom_certificate_verifier(verifier),
            // Nothing is trusted.
            Err(_) => builder.with_root_certificates(self.store.clone()),
        };
        Arc::new(builder.with_no_client_auth())
    }
}
