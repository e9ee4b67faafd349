//! Reissues leaf certificates: same subject, names and usages, new key, new validity.

use std::{path::Path, time::SystemTime};

use api_config::{Kubeconfig, kubeconfig::User};
use bootstrap_core::certs::Ca;
use pki::{Authority, Cert, KeyAlgorithm, LeafSpec, Usage, Validity};

use super::authority::{AuthorityKey, files, load_authority};
use crate::{Error, FileChange};

/// The parameters of a renewal besides the certificate itself.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// The start of the new validity.
    pub now: SystemTime,
    /// The duration of the new validity.
    pub period: std::time::Duration,
    /// The algorithm of the new key; `None` keeps that of the old key.
    pub algorithm: Option<KeyAlgorithm>,
}

fn signer(dir: &Path, ca: Ca, now: SystemTime) -> Result<Box<Authority>, Error> {
    let (cert, key) = files(dir, ca);
    match load_authority(dir, ca, now)?.map(|loaded| loaded.key) {
        Some(AuthorityKey::Full(authority)) => Ok(authority),
        Some(AuthorityKey::CertOnly) => Err(Error::NoSigningKey(key)),
        None => Err(Error::NoSigner(cert)),
    }
}

/// Issues a new certificate and key for the subject of `old`. The certificate does not outlive its authority.
fn reissue(
    old: &Cert,
    ca: &Authority,
    fallback: KeyAlgorithm,
    renewal: Renewal,
) -> Result<(Cert, pki::Key), Error> {
    let info = old.info()?;
    let usage = match (info.server_auth, info.client_auth) {
        (true, true) => Usage::ServerAndClient,
        (true, false) => Usage::Server,
        _ => Usage::Client,
    };
    let spec = LeafSpec { subject: info.subject, alt_names: info.alt_names, usage };
    let validity =
        Validity::starting(renewal.now, renewal.period).until_at_most(ca.cert().info()?.not_after);
    Ok(ca.issue_new(&spec, renewal.algorithm.unwrap_or(fallback), validity)?)
}

/// Renews the certificate `base` in `dir`. Key and certificate are replaced one after the other; readers accept only a
/// matching pair.
pub fn renew_leaf(
    dir: &Path,
    base: &str,
    ca: Ca,
    renewal: Renewal,
) -> Result<Vec<FileChange>, Error> {
    let (cert_file, key_file) = (dir.join(format!("{base}.crt")), dir.join(format!("{base}.key")));
    let authority = signer(dir, ca, renewal.now)?;
    let old_key = pki::read_key(&key_file)?;
    let fallback = old_key.algorithm().unwrap_or(KeyAlgorithm::Rsa2048);
    let (cert, key) = reissue(&pki::read_cert(&cert_file)?, &authority, fallback, renewal)?;
    pki::write_key(&key_file, &key)?;
    pki::write_cert(&cert_file, &cert)?;
    Ok(vec![FileChange::written(cert_file), FileChange::written(key_file)])
}

/// Renews a client certificate that shares a file with its key.
pub(super) fn renew_combined(
    dir: &Path,
    path: &Path,
    renewal: Renewal,
) -> Result<FileChange, Error> {
    let authority = signer(dir, Ca::Kubernetes, renewal.now)?;
    let fallback = pki::read_key(path)?.algorithm().unwrap_or(KeyAlgorithm::EcdsaP256);
    let (cert, key) = reissue(&pki::read_cert(path)?, &authority, fallback, renewal)?;
    // Replace the target of the symbolic link, so that the link stays.
    let file = std::fs::canonicalize(path).map_err(crate::error::io("follow", path))?;
    let text = format!("{}{}", cert.to_pem(), key.to_pem()?);
    pki::write_file(&file, text.as_bytes(), pki::KEY_MODE)?;
    Ok(FileChange::written(file))
}

/// Renews the client certificate in a kubeconfig file and keeps everything else.
pub fn renew_kubeconfig(dir: &Path, path: &Path, renewal: Renewal) -> Result<FileChange, Error> {
    let unusable = |reason: String| Error::Kubeconfig { path: path.into(), reason };
    let authority = signer(dir, Ca::Kubernetes, renewal.now)?;
    let mut config = Kubeconfig::load(path)?;
    let old = config.current()?.user.clone();
    let pem =
        old.cert_pem()?.ok_or_else(|| unusable("it holds no client certificate".to_owned()))?;
    let fallback = match old.key_pem()? {
        Some(key) => pki::Key::from_pem(&key)?.algorithm(),
        None => None,
    };
    let (cert, key) = reissue(
        &Cert::from_pem(&pem)?,
        &authority,
        fallback.unwrap_or(KeyAlgorithm::Rsa2048),
        renewal,
    )?;
    let new = User::with_cert(&cert.to_pem(), &key.to_pem()?);
    for named in config.users.iter_mut().filter(|u| u.user == old) {
        named.user.client_certificate_data.clone_from(&new.client_certificate_data);
        named.user.client_key_data.clone_from(&new.client_key_data);
        named.user.client_certificate.clear();
        named.user.client_key.clear();
    }
    config.write(path)?;
    Ok(FileChange::written(path.into()))
}
