//! Whom to trust: the system's authorities, and those that a config adds.

use std::{fs, sync::Arc};

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::FetchError;

const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Clone, Debug)]
pub(crate) struct Roots(RootCertStore);

impl Roots {
    pub(crate) fn system() -> Self {
        let mut roots = RootCertStore::empty();
        // A machine without a bundle trusts those that its config names, and nobody else.
        for certificate in
            CertificateDer::pem_slice_iter(&fs::read(SYSTEM).unwrap_or_default()).flatten()
        {
            // Old roots that cannot be read are of no use, and no reason to stop.
            let _ = roots.add(certificate);
        }
        Self(roots)
    }

    pub(crate) fn add(&mut self, origin: &str, bundle: &[u8]) -> Result<(), FetchError> {
        let failed =
            |reason: String| FetchError::Certificates { origin: super::shown(origin), reason };
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            self.0.add(certificate).map_err(|error| failed(error.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(failed("no certificate in PEM is in it".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::new(
            ClientConfig::builder().with_root_certificates(self.0.clone()).with_no_client_auth(),
        )
    }
}
