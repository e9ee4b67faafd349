//! Certificate authorities on disk.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use bootstrap_core::certs::{Ca, Plan};
use pki::{Authority, Cert, Validity};

use crate::{Error, FileChange};

/// The key of an authority on disk.
#[derive(Debug)]
pub enum AuthorityKey {
    /// The key is present, so the authority can sign.
    Full(Box<Authority>),
    /// Only the certificate is present, because the key is kept elsewhere. The authority can only verify.
    CertOnly,
}

/// An authority's certificates (several during a rotation) and its key, if present.
#[derive(Debug)]
pub struct LoadedAuthority {
    /// The certificates of the file.
    pub bundle: Vec<Cert>,
    /// The key, if present.
    pub key: AuthorityKey,
}

const CURE: &str = "replace it, or remove it and its key to have both created again";

pub(super) fn files(dir: &Path, ca: Ca) -> (PathBuf, PathBuf) {
    (dir.join(format!("{}.crt", ca.base())), dir.join(format!("{}.key", ca.base())))
}

/// Reads and checks the authority; `None` if neither certificate nor key exists.
pub fn load_authority(
    dir: &Path,
    ca: Ca,
    now: SystemTime,
) -> Result<Option<LoadedAuthority>, Error> {
    let (cert_file, key_file) = files(dir, ca);
    let unusable = |source| Error::Unusable { path: cert_file.clone(), source, cure: CURE };
    match (cert_file.exists(), key_file.exists()) {
        (false, false) => return Ok(None),
        (false, true) => return Err(Error::HalfPair { have: key_file, missing: cert_file }),
        (true, _) => {}
    }
    let bundle = pki::read_certs(&cert_file)?;
    for cert in &bundle {
        let info = cert.info()?;
        if !info.is_ca {
            return Err(unusable(pki::Error::NotAnAuthority { subject: info.subject.to_string() }));
        }
    }
    if !key_file.exists() {
        bundle[0].check_valid_at(now).map_err(unusable)?;
        return Ok(Some(LoadedAuthority { bundle, key: AuthorityKey::CertOnly }));
    }
    let key = pki::read_key(&key_file)?;
    let signer =
        bundle.iter().find(|cert| cert.check_key(&key).is_ok()).unwrap_or(&bundle[0]).clone();
    let authority = Authority::from_parts(signer, key).map_err(unusable)?;
    authority.cert().check_valid_at(now).map_err(unusable)?;
    Ok(Some(LoadedAuthority { bundle, key: AuthorityKey::Full(Box::new(authority)) }))
}

/// Creates the authority unless its certificate exists.
pub fn ensure_authority(
    dir: &Path,
    ca: Ca,
    plan: &Plan,
    now: SystemTime,
) -> Result<Vec<FileChange>, Error> {
    let (cert_file, key_file) = files(dir, ca);
    match load_authority(dir, ca, now)? {
        Some(LoadedAuthority { key: AuthorityKey::Full(_), .. }) => {
            Ok(vec![FileChange::used(cert_file), FileChange::used(key_file)])
        }
        Some(LoadedAuthority { key: AuthorityKey::CertOnly, .. }) => {
            Ok(vec![FileChange::used(cert_file)])
        }
        None => {
            let validity = Validity::starting(now, plan.ca_validity);
            let authority = Authority::create(ca.common_name(), plan.algorithm, validity)?;
            // The key is written first: a certificate alone would look like an authority whose key is kept elsewhere.
            pki::write_key(&key_file, authority.key())?;
            pki::write_cert(&cert_file, authority.cert())?;
            Ok(vec![FileChange::written(cert_file), FileChange::written(key_file)])
        }
    }
}
