//! The serving certificate of the kubelet's server.

use std::{path::Path, time::SystemTime};

use kubelet_config::Settings;
use pki::AltName;
use serve::ServerTls;

use crate::error::ServerError;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::Read { path: path.to_owned(), source })
}

/// Returns the serving certificate. In this order: the one issued by the cluster (`serverTLSBootstrap`), the configured
/// one, or a self-signed one, which is stored so that a restarted kubelet has the same.
pub(crate) fn identity(
    settings: &Settings,
    issued: Option<&Path>,
    now: SystemTime,
) -> Result<ServerTls, ServerError> {
    // Without the names of accepted authorities, clients send whatever certificate they have.
    let policy = settings.server.tls.clone();
    if let Some(issued) = issued {
        let configured = settings.server.certificate.clone();
        let issued = (issued.to_owned(), issued.to_owned());
        let pairs = std::iter::once(issued).chain(configured).collect();
        return Ok(ServerTls::from_first(policy, pairs)?);
    }
    if let Some((certificate, key)) = &settings.server.certificate {
        return Ok(ServerTls::from_files_under(policy, certificate, key, Vec::new())?);
    }
    let (certificate, key) = self_signed(settings, now)?;
    Ok(ServerTls::new_under(&policy, &certificate, &key, Vec::new())?)
}

fn self_signed(settings: &Settings, now: SystemTime) -> Result<(Vec<u8>, Vec<u8>), ServerError> {
    let (certificate, key) =
        (settings.cert_dir.join("kubelet.crt"), settings.cert_dir.join("kubelet.key"));
    let ips = settings.node_ips.iter().filter_map(|ip| ip.parse().ok()).map(AltName::Ip);
    let names = std::iter::once(AltName::dns(&settings.node_name)).chain(ips).collect();
    Ok(pki::keep_self_signed((&certificate, &key), &settings.node_name, names, now)?)
}
