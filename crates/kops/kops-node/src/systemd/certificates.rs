//! Certificates of a machine. A control plane issues them, and renews them in time; a worker receives them. They are
//! kept, so that a second run needs none.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster as Server, User},
};
use kops_core::nodeup::{Certificate, CertificateUse, Kubeconfig as KubeconfigTask};
use kops_store::Keyset;
use pki::{AltName, Cert, Key, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::{error::Error, parameters::CERTIFICATE_PERIOD, systemd_error::SystemdError};

/// The time before a certificate's end at which a control plane renews it. A worker cannot, because kops-controller
/// answers a machine only while its Node is not ready.
const RENEWAL: Duration = Duration::from_secs(90 * 86_400);
/// The directory of the kept certificates.
const DIRECTORY: &str = "var/lib/nodeup/certificates";

/// A certificate with its key and its authority's certificate, in PEM.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) authority: String,
}

/// The signers of a machine's certificates.
pub(super) enum Signers<'a> {
    /// The keysets of a control plane, with private keys.
    Keysets(&'a BTreeMap<String, Keyset>),
    /// The certificates that a worker trusts. kops-controller has the private key.
    Trusted(Vec<Cert>),
}

/// Issues and keeps the certificates of a machine.
pub(super) struct Issuer<'a> {
    pub(super) root: &'a Path,
    pub(super) signers: Signers<'a>,
    pub(super) now: SystemTime,
}

impl Issuer<'_> {
    /// Returns a certificate: the kept one if it still is what the task wants, or a new one.
    pub(super) fn issue(&self, task: &Certificate) -> Result<Issued, Error> {
        let SignedPair { cert, key, authority } = match &self.signers {
            Signers::Keysets(keysets) => self.issue_here(task, keysets)?,
            Signers::Trusted(trusted) => self
                .received(task, trusted)
                .ok_or_else(|| SystemdError::MissingCertificate { name: task.name.clone() })?,
        };
        let authority = authority.to_pem();
        let mut certificate = cert.to_pem();
        if task.with_root {
            certificate.push_str(&authority);
        }
        Ok(Issued { certificate, key: key.to_pem()?, authority })
    }

    /// Reports whether a worker has a certificate.
    pub(super) fn has(&self, task: &Certificate) -> bool {
        match &self.signers {
            Signers::Keysets(_) => false,
            Signers::Trusted(trusted) => self.received(task, trusted).is_some(),
        }
    }

    /// Keeps a certificate that a worker has received, if it is what the task wants.
    pub(super) fn keep(&self, task: &Certificate, pem: &str, key: &Key) -> Result<(), Error> {
        self.write(&task.name, &Cert::from_pem(pem)?, key)?;
        if self.has(task) {
            return Ok(());
        }
        Err(SystemdError::MissingCertificate { name: task.name.clone() }.into())
    }

    fn issue_here(
        &self,
        task: &Certificate,
        keysets: &BTreeMap<String, Keyset>,
    ) -> Result<SignedPair, Error> {
        let missing =
            || SystemdError::MissingKeypair { name: task.signer.clone(), id: task.keypair.clone() };
        let keyset = keysets.get(&task.signer).ok_or_else(missing)?;
        let authority = keyset.authority_of(&task.keypair)?;
        let spec = spec(task)?;
        let kept = self.read(&task.name).filter(|kept| {
            is_wanted(&kept.cert, &spec)
                && self.is_valid(kept, authority.cert())
                && kept.cert.check_valid_at(self.now + RENEWAL).is_ok()
        });
        let StoredPair { cert, key } = match kept {
            Some(kept) => kept,
            None => {
                let validity = Validity::starting(self.now, CERTIFICATE_PERIOD);
                let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
                self.write(&task.name, &cert, &key)?;
                StoredPair { cert, key }
            }
        };
        Ok(SignedPair { cert, key, authority: authority.cert().clone() })
    }

    /// Returns the kept certificate of a worker. kops-controller decides the names of a server.
    fn received(&self, task: &Certificate, trusted: &[Cert]) -> Option<SignedPair> {
        let kept = self.read(&task.name)?;
        let info = kept.cert.info().ok()?;
        let wanted = spec(task).ok()?;
        let is_wanted = match wanted.usage {
            Usage::Server => info.server_auth,
            _ => info.client_auth && info.subject == wanted.subject,
        };
        let authority = trusted.iter().find(|authority| self.is_valid(&kept, authority))?;
        let StoredPair { cert, key } = kept;
        is_wanted.then(|| SignedPair { cert, key, authority: authority.clone() })
    }

    /// Reports whether a certificate belongs to its key, is valid now and was signed by an authority.
    fn is_valid(&self, kept: &StoredPair, authority: &Cert) -> bool {
        kept.cert.check_key(&kept.key).is_ok()
            && kept.cert.check_signed_by(authority).is_ok()
            && kept.cert.check_valid_at(self.now).is_ok()
    }

    fn read(&self, name: &str) -> Option<StoredPair> {
        let (certificate, key) = self.paths(name);
        let cert = Cert::from_pem(&fs::read_to_string(certificate).ok()?).ok()?;
        let key = Key::from_pem(&fs::read_to_string(key).ok()?).ok()?;
        Some(StoredPair { cert, key })
    }

    fn write(&self, name: &str, cert: &Cert, key: &Key) -> Result<(), Error> {
        let (certificate, path) = self.paths(name);
        pki::write_key(&path, key)?;
        Ok(pki::write_file(&certificate, cert.to_pem().as_bytes(), pki::KEY_MODE)?)
    }

    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        let directory = self.root.join(DIRECTORY);
        (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
    }
}

/// A kept certificate with its key.
struct StoredPair {
    cert: Cert,
    key: Key,
}

/// A certificate with its key and its authority's certificate.
struct SignedPair {
    cert: Cert,
    key: Key,
    authority: Cert,
}

/// Reports whether a certificate has the wanted subject, names and usage.
fn is_wanted(cert: &Cert, spec: &LeafSpec) -> bool {
    let Ok(info) = cert.info() else { return false };
    let (mut have, mut want) = (info.alt_names.clone(), spec.alt_names.clone());
    have.sort();
    want.sort();
    info.subject == spec.subject
        && have == want
        && (info.server_auth, info.client_auth) == (spec.usage.server(), spec.usage.client())
}

fn spec(task: &Certificate) -> Result<LeafSpec, Error> {
    let organizations = task.organizations.iter();
    let subject =
        organizations.fold(Subject::new(&task.common_name), |subject, name| subject.in_group(name));
    let names: Result<Vec<AltName>, _> = task.names.iter().map(|name| name.parse()).collect();
    let usage = match task.usage {
        CertificateUse::Client => Usage::Client,
        CertificateUse::Server => Usage::Server,
    };
    Ok(LeafSpec { subject, alt_names: names?, usage })
}

/// Returns the text of a kubeconfig. `authorities` are the certificates that it trusts.
pub(super) fn kubeconfig(
    task: &KubeconfigTask,
    issued: &Issued,
    authorities: &str,
) -> Result<String, Error> {
    let server = Server::with_ca(task.server.clone(), authorities);
    let user = User::with_cert(&issued.certificate, &issued.key);
    Ok(Kubeconfig::single("local", server, &task.name, user).to_yaml()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_certificate_until_it_differs_or_ends() {
        let dir = tempfile::tempdir().unwrap();
        let now = rt::now();
        let mut keyset = Keyset::generate("kubernetes-ca", now).unwrap();
        let old = keyset.primary_id().to_owned();
        let new = keyset.add(None, None, true, now).unwrap();
        let keysets = BTreeMap::from([("kubernetes-ca".to_owned(), keyset)]);
        let task = Certificate {
            name: "server".to_owned(),
            signer: "kubernetes-ca".to_owned(),
            keypair: old,
            usage: CertificateUse::Server,
            common_name: "server".to_owned(),
            organizations: Vec::new(),
            names: vec!["a.example.com".to_owned(), "10.0.0.1".to_owned()],
            with_root: true,
        };
        let try_issue = |task: &Certificate, now| {
            let signers = Signers::Keysets(&keysets);
            Issuer { root: dir.path(), signers, now }.issue(task)
        };
        let issue = |task: &Certificate, now| try_issue(task, now).unwrap();
        let first = issue(&task, now);
        assert_eq!(Cert::all_from_pem(&first.certificate).unwrap().len(), 2);
        assert_eq!(issue(&task, now).certificate, first.certificate);
        let later = now + CERTIFICATE_PERIOD - RENEWAL - Duration::from_secs(3600);
        assert_eq!(issue(&task, later).certificate, first.certificate);
        let renewed = issue(&task, now + CERTIFICATE_PERIOD - RENEWAL);
        assert_ne!(renewed.certificate, first.certificate);
        let more = Certificate { names: vec!["b.example.com".to_owned()], ..task.clone() };
        assert_ne!(issue(&more, now).certificate, renewed.certificate);
        let promoted = Certificate { keypair: new, ..more.clone() };
        assert_ne!(issue(&promoted, now).authority, issue(&more, now).authority);
        let unknown = Certificate { keypair: "7".to_owned(), ..task };
        assert!(try_issue(&unknown, now).is_err());
    }
}
