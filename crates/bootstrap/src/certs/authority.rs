use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use bootstrap_core::certs::{Ca, Plan};
use pki::{Authority, Cert, Validity};

use crate::{Error, Touched};

/// An authority as found on disk.
#[derive(Debug)]
pub enum Held {
    /// With its key: it can sign.
    Full(Box<Authority>),
    /// Without its key, which is kept elsewhere: it can only be checked against.
    CertOnly,
}

/// The authority's certificates (several while a rotation is under way) and what is held of it.
#[derive(Debug)]
pub struct Loaded {
    pub bundle: Vec<Cert>,
    pub held: Held,
}

const CURE: &str = "replace it, or remove it and its key to have both made anew";

pub(super) fn files(dir: &Path, ca: Ca) -> (PathBuf, PathBuf) {
    (dir.join(format!("{}.crt", ca.base())), dir.join(format!("{}.key", ca.base())))
}

/// Reads and checks the authority; `None` where neither certificate nor key exists.
pub fn load_authority(dir: &Path, ca: Ca, now: SystemTime) -> Result<Option<Loaded>, Error> {
    let (cert_file, key_file) = files(dir, ca);
    let given = |source| Error::Given { path: cert_file.clone(), source, cure: CURE };
    match (cert_file.exists(), key_file.exists()) {
        (false, false) => return Ok(None),
        (false, true) => return Err(Error::HalfPair { have: key_file, missing: cert_file }),
        (true, _) => {}
    }
    let bundle = pki::read_certs(&cert_file)?;
    for cert in &bundle {
        let info = cert.info()?;
        if !info.is_ca {
            return Err(given(pki::Error::NotAnAuthority { subject: info.subject.to_string() }));
        }
    }
    if !key_file.exists() {
        bundle[0].check_valid_at(now).map_err(given)?;
        return Ok(Some(Loaded { bundle, held: Held::CertOnly }));
    }
    let key = pki::read_key(&key_file)?;
    let signer =
        bundle.iter().find(|cert| cert.check_key(&key).is_ok()).unwrap_or(&bundle[0]).clone();
    let authority = Authority::from_parts(signer, key).map_err(given)?;
    authority.cert().check_valid_at(now).map_err(given)?;
    Ok(Some(Loaded { bundle, held: Held::Full(Box::new(authority)) }))
}

/// Makes the authority unless it, or its certificate alone, is there.
pub fn ensure_authority(
    dir: &Path,
    ca: Ca,
    plan: &Plan,
    now: SystemTime,
) -> Result<Vec<Touched>, Error> {
    let (cert_file, key_file) = files(dir, ca);
    match load_authority(dir, ca, now)? {
        Some(Loaded { held: Held::Full(_), .. }) => {
            Ok(vec![Touched::used(cert_file), Touched::used(key_file)])
        }
        Some(Loaded { held: Held::CertOnly, .. }) => Ok(vec![Touched::used(cert_file)]),
        None => {
            let validity = Validity::starting(now, plan.ca_validity);
            let authority = Authority::create(ca.common_name(), plan.algorithm, validity)?;
            // The key first: a certificate alone would look like an authority that is kept elsewhere.
            pki::write_key(&key_file, authority.key())?;
            pki::write_cert(&cert_file, authority.cert())?;
            Ok(vec![Touched::written(cert_file), Touched::written(key_file)])
        }
    }
}
