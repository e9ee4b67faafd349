//! Leaf certificates on disk.

use std::{path::Path, time::SystemTime};

use bootstrap_core::certs::{Leaf, Plan};
use pki::{Cert, Key, Validity};

use super::authority::{AuthorityKey, LoadedAuthority, files, load_authority};
use crate::{Error, FileChange};

const CURE: &str = "replace it, or remove it and its key to have both created again";

/// Creates a leaf certificate unless it exists. An existing one must match its key, authority and usage.
pub fn ensure_leaf(
    dir: &Path,
    leaf: &Leaf,
    plan: &Plan,
    now: SystemTime,
) -> Result<Vec<FileChange>, Error> {
    let ca_key = files(dir, leaf.ca).1;
    let authority = load_authority(dir, leaf.ca, now)?
        .ok_or_else(|| Error::NoAuthority { key: ca_key.clone(), phase: leaf.ca.name() })?;
    let cert_file = dir.join(format!("{}.crt", leaf.base));
    let key_file = dir.join(format!("{}.key", leaf.base));
    match (cert_file.exists(), key_file.exists()) {
        (true, true) => {
            check(leaf, &pki::read_cert(&cert_file)?, &pki::read_key(&key_file)?, &authority, now)
                .map_err(|source| Error::Unusable {
                    path: cert_file.clone(),
                    source,
                    cure: CURE,
                })?;
            Ok(vec![FileChange::used(cert_file), FileChange::used(key_file)])
        }
        (true, false) => Err(Error::HalfPair { have: cert_file, missing: key_file }),
        (false, has_key) => {
            let AuthorityKey::Full(ca) = &authority.key else {
                return Err(Error::ExternalCa { missing: cert_file, key: ca_key });
            };
            // A leaf must not outlive its authority.
            let validity = Validity::starting(now, plan.leaf_validity)
                .until_at_most(ca.cert().info()?.not_after);
            // A key without a certificate is left by an interrupted run or by `certs generate-csr`, and is used.
            let key =
                if has_key { pki::read_key(&key_file)? } else { Key::generate(plan.algorithm)? };
            let cert = ca.issue(&leaf.spec, &key, validity)?;
            if !has_key {
                pki::write_key(&key_file, &key)?;
            }
            pki::write_cert(&cert_file, &cert)?;
            Ok(vec![
                FileChange::written(cert_file),
                FileChange { path: key_file, written: !has_key },
            ])
        }
    }
}

fn check(
    leaf: &Leaf,
    cert: &Cert,
    key: &Key,
    authority: &LoadedAuthority,
    now: SystemTime,
) -> Result<(), pki::Error> {
    cert.check_key(key)?;
    if !authority.bundle.iter().any(|ca| cert.check_signed_by(ca).is_ok()) {
        cert.check_signed_by(&authority.bundle[0])?;
    }
    cert.check_valid_at(now)?;
    cert.check_usage(leaf.spec.usage)?;
    cert.check_names(&leaf.spec.alt_names)
}
