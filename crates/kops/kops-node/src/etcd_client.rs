//! Creates clients of etcd.

use std::time::Duration;

use bootstrap::etcd::Etcd;
use client::TlsMaterial;
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::error::Error;

/// The lifetime of the client certificate for etcd.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(3600);

/// Returns an etcd client with a new certificate for `user`. `trusted` are the authorities of the servers, in PEM:
/// during a rotation, members with certificates of the old and the new one run side by side.
pub fn etcd_client(
    endpoints: &[String],
    user: &str,
    authority: &Authority,
    trusted: &str,
) -> Result<Etcd, Error> {
    let spec =
        LeafSpec { subject: Subject::new(user), alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let tls = TlsMaterial {
        ca: Some(trusted.as_bytes().to_vec()),
        certificate: Some(cert.to_pem().into_bytes()),
        key: Some(key.to_pem()?.into_bytes()),
        insecure: false,
    };
    Ok(Etcd::with(endpoints, &tls)?)
}
