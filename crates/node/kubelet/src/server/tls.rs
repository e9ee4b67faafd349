//! The serving certificate of the kubelet's server.

use std::{path::Path, time::SystemTime};

use pki::AltName;
use serve::ServerTls;

use super::ServerError;
use crate::{certificate::Certificate, config::Settings};

pub(super) fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::Read { path: path.to_owned(), source })
}

/// Returns the serving certificate. In this order: the one issued by the cluster (`serverTLSBootstrap`), the configured
/// one, or a self-signed one, which is stored so that a restarted kubelet has the same.
pub(super) fn identity(settings: &Settings, now: SystemTime) -> Result<ServerTls, ServerError> {
    // Without the names of accepted authorities, clients send whatever certificate they have.
    let policy = settings.server.tls.clone();
    if settings.server.bootstrap {
        let current = serving(settings).current(&settings.cert_dir);
        let given = settings.server.certificate.clone();
        let pairs = std::iter::once((current.clone(), current)).chain(given).collect();
        return Ok(ServerTls::from_first(policy, pairs)?);
    }
    if let Some((certificate, key)) = &settings.server.certificate {
        return Ok(ServerTls::from_files_under(policy, certificate, key, Vec::new())?);
    }
    let (certificate, key) = self_signed(settings, now)?;
    Ok(ServerTls::new_under(&policy, &certificate, &key, Vec::new())?)
}

/// Returns the certificate to request from the cluster.
pub(super) fn serving(settings: &Settings) -> Certificate {
    Certificate::serving(settings.node_name.clone(), &settings.node_ips)
}

fn self_signed(settings: &Settings, now: SystemTime) -> Result<(Vec<u8>, Vec<u8>), ServerError> {
    let (certificate, key) =
        (settings.cert_dir.join("kubelet.crt"), settings.cert_dir.join("kubelet.key"));
    let ips = settings.node_ips.iter().filter_map(|ip| ip.parse().ok()).map(AltName::Ip);
    let names = std::iter::once(AltName::dns(&settings.node_name)).chain(ips).collect();
    Ok(pki::keep_self_signed((&certificate, &key), &settings.node_name, names, now)?)
}
