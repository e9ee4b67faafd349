//! The files of the authorities and of the service account key during a rotation. `ca-next.crt` and its key are kept
//! beside `ca.crt` until they sign. `ca.crt` has the signer first, followed by other trusted certificates.

use std::{fs, path::Path};

use bootstrap_core::certs::{Ca, Plan};
use pki::{Authority, Cert, Key, Validity};

use super::bundle::pem;
use crate::{
    Error, FileChange,
    certs::{AuthorityKey, load_authority},
    error::io,
};

const ALL: [Ca; 3] = [Ca::Kubernetes, Ca::FrontProxy, Ca::Etcd];

type Paths = [std::path::PathBuf; 2];

fn current_files(dir: &Path, ca: Ca) -> Paths {
    ["crt", "key"].map(|extension| dir.join(format!("{}.{extension}", ca.base())))
}

fn next_files(dir: &Path, ca: Ca) -> Paths {
    ["crt", "key"].map(|extension| dir.join(format!("{}-next.{extension}", ca.base())))
}

/// Returns `true` if new authorities exist that do not sign yet.
pub(super) fn is_begun(dir: &Path) -> bool {
    next_files(dir, Ca::Kubernetes)[1].exists()
}

/// Creates successors of every authority and of the service account key.
pub(super) fn prepare(
    dir: &Path,
    plan: &Plan,
    now: std::time::SystemTime,
) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    for ca in &plan.authorities {
        let Some(loaded) = load_authority(dir, *ca, now)? else { continue };
        let AuthorityKey::Full(old) = loaded.key else {
            let [cert, key] = current_files(dir, *ca);
            return Err(Error::ExternalCa { missing: key, key: cert });
        };
        let [cert, key] = next_files(dir, *ca);
        let algorithm = old.key().algorithm().unwrap_or(plan.algorithm);
        let name = old.cert().info()?.subject.common_name;
        let successor =
            Authority::create(&name, algorithm, Validity::starting(now, plan.ca_validity))?;
        pki::write_key(&key, successor.key())?;
        pki::write_cert(&cert, successor.cert())?;
        touched.extend([FileChange::written(cert), FileChange::written(key)]);
    }
    let old = pki::read_key(&dir.join("sa.key"))?;
    let path = dir.join("sa-next.key");
    pki::write_key(&path, &Key::generate(old.algorithm().unwrap_or(plan.algorithm))?)?;
    touched.push(FileChange::written(path));
    Ok(touched)
}

/// Adds the new authorities to the trusted ones.
pub(super) fn trust(dir: &Path) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    for ca in ALL {
        let [next, _] = next_files(dir, ca);
        if !next.exists() {
            continue;
        }
        let [path, _] = current_files(dir, ca);
        let (mut bundle, next) = (pki::read_certs(&path)?, pki::read_cert(&next)?);
        if !bundle.contains(&next) {
            bundle.push(next);
        }
        write_bundle(&path, &bundle)?;
        touched.push(FileChange::written(path));
    }
    let next = dir.join("sa-next.key");
    if next.exists() {
        touched.push(keep_public(dir, &[dir.join("sa.key"), next])?);
    }
    Ok(touched)
}

/// Makes the new authorities the signers; the old ones stay trusted. Certificates are written first, because the signer
/// is found by its key among them.
pub(super) fn issue(dir: &Path) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    for ca in ALL {
        let [next_cert, next_key] = next_files(dir, ca);
        if !next_cert.exists() {
            continue;
        }
        let [path, key] = current_files(dir, ca);
        let next = pki::read_cert(&next_cert)?;
        let old = pki::read_certs(&path)?.into_iter().filter(|cert| *cert != next);
        write_bundle(&path, &std::iter::once(next.clone()).chain(old).collect::<Vec<_>>())?;
        if next_key.exists() {
            fs::rename(&next_key, &key).map_err(io("put in place", &key))?;
        }
        fs::remove_file(&next_cert).map_err(io("remove", &next_cert))?;
        touched.extend([FileChange::written(path), FileChange::written(key)]);
    }
    let (next, key) = (dir.join("sa-next.key"), dir.join("sa.key"));
    if next.exists() {
        fs::rename(&next, &key).map_err(io("put in place", &key))?;
        touched.push(FileChange::written(key));
    }
    Ok(touched)
}

/// Removes all authorities except the signers.
pub(super) fn finish(dir: &Path) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    for ca in ALL {
        let [path, key] = current_files(dir, ca);
        if path.exists() && key.exists() {
            write_bundle(&path, &[signer_in(&path, &key)?])?;
            touched.push(FileChange::written(path));
        }
    }
    touched.push(keep_public(dir, &[dir.join("sa.key")])?);
    Ok(touched)
}

/// Returns the new Kubernetes authority, before or after it signs.
pub(super) fn next(dir: &Path) -> Result<Cert, Error> {
    let [next, _] = next_files(dir, Ca::Kubernetes);
    if next.exists() { Ok(pki::read_cert(&next)?) } else { signer(dir) }
}

/// Returns the Kubernetes authority whose key is on this machine.
pub(super) fn signer(dir: &Path) -> Result<Cert, Error> {
    let [path, key] = current_files(dir, Ca::Kubernetes);
    signer_in(&path, &key)
}

fn signer_in(path: &Path, key: &Path) -> Result<Cert, Error> {
    let key = pki::read_key(key)?;
    let authority = pki::read_certs(path)?.into_iter().find(|cert| cert.check_key(&key).is_ok());
    authority.ok_or_else(|| Error::Unusable {
        path: path.into(),
        source: pki::Error::KeyMismatch { subject: path.display().to_string() },
        cure: "put the certificate of its key there",
    })
}

pub(super) fn write_bundle(path: &Path, bundle: &[Cert]) -> Result<(), Error> {
    Ok(pki::write_file(path, pem(bundle).as_bytes(), pki::PUBLIC_MODE)?)
}

/// Writes the public halves of keys to `sa.pub`. The API server accepts tokens signed by any of them.
fn keep_public(dir: &Path, keys: &[std::path::PathBuf]) -> Result<FileChange, Error> {
    let mut text = String::new();
    for key in keys {
        text.push_str(&pki::read_key(key)?.public_pem()?);
    }
    let path = dir.join("sa.pub");
    pki::write_file(&path, text.as_bytes(), pki::KEY_MODE)?;
    Ok(FileChange::written(path))
}
