use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serve::ServerTls;

use super::ServerError;
use crate::{certificate::Certificate, config::Settings};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::Read { path: path.to_owned(), source })
}

/// The certificate to serve with: the one that the cluster issued, where it is to; or the one that is configured; or one
/// signed by an authority made for it, which is kept so that a restarted kubelet is the same server.
pub(super) fn identity(settings: &Settings, now: SystemTime) -> Result<ServerTls, ServerError> {
    // The authority's name is a hint only; without it clients send what certificate they have.
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

/// What is asked of the cluster.
pub(super) fn serving(settings: &Settings) -> Certificate {
    Certificate::serving(settings.node_name.clone(), &settings.node_ips)
}

fn self_signed(settings: &Settings, now: SystemTime) -> Result<(Vec<u8>, Vec<u8>), ServerError> {
    let (certificate, key) =
        (settings.cert_dir.join("kubelet.crt"), settings.cert_dir.join("kubelet.key"));
    if let (Ok(text), Ok(key)) = (std::fs::read_to_string(&certificate), std::fs::read(&key))
        && pki::Cert::from_pem(&text).is_ok_and(|cert| cert.check_valid_at(now).is_ok())
    {
        return Ok((text.into_bytes(), key));
    }
    let validity = Validity::starting(now, YEAR);
    let name = format!("{}-ca", settings.node_name);
    let authority = Authority::create(&name, KeyAlgorithm::EcdsaP256, validity)?;
    let ips = settings.node_ips.iter().filter_map(|ip| ip.parse().ok()).map(AltName::Ip);
    let alt_names = std::iter::once(AltName::dns(&settings.node_name)).chain(ips).collect();
    let spec =
        LeafSpec { subject: Subject::new(&settings.node_name), alt_names, usage: Usage::Server };
    let (cert, own) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let chain = format!("{}{}", cert.to_pem(), authority.cert().to_pem());
    pki::write_file(&certificate, chain.as_bytes(), pki::PUBLIC_MODE)?;
    pki::write_file(&key, own.to_pem()?.as_bytes(), pki::KEY_MODE)?;
    Ok((chain.into_bytes(), own.to_pem()?.into_bytes()))
}
