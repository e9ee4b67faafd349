//! Certificates that a machine issues. They are kept, so that a second run issues none, and are renewed in time.

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
use pki::{AltName, Authority, Cert, Key, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::{error::Error, parameters::CERTIFICATE_PERIOD, systemd_error::SystemdError};

/// The time before a certificate's end at which it is renewed.
const RENEWAL: Duration = Duration::from_secs(90 * 86_400);
/// The directory of the issued certificates.
const DIRECTORY: &str = "var/lib/nodeup/certificates";

/// A certificate with its key and its authority's certificate, in PEM.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) authority: String,
}

/// Issues the certificates of a machine.
pub(super) struct Issuer<'a> {
    pub(super) root: &'a Path,
    pub(super) keysets: &'a BTreeMap<String, Keyset>,
    pub(super) now: SystemTime,
}

impl Issuer<'_> {
    /// Returns a certificate: the kept one if it still is what the task wants, or a new one.
    pub(super) fn issue(&self, task: &Certificate) -> Result<Issued, Error> {
        let authority = self.authority(task)?;
        let spec = spec(task)?;
        let (certificate, key) = self.paths(&task.name);
        let (cert, key) = match self.kept(&certificate, &key, &spec, &authority) {
            Some(kept) => kept,
            None => {
                let validity = Validity::starting(self.now, CERTIFICATE_PERIOD);
                let (cert, new) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
                pki::write_key(&key, &new)?;
                pki::write_file(&certificate, cert.to_pem().as_bytes(), pki::KEY_MODE)?;
                (cert, new)
            }
        };
        let authority = authority.cert().to_pem();
        let mut certificate = cert.to_pem();
        if task.with_root {
            certificate.push_str(&authority);
        }
        Ok(Issued { certificate, key: key.to_pem()?, authority })
    }

    fn authority(&self, task: &Certificate) -> Result<Authority, Error> {
        let missing =
            || SystemdError::MissingKeypair { name: task.signer.clone(), id: task.keypair.clone() };
        let keyset = self.keysets.get(&task.signer).ok_or_else(missing)?;
        Ok(keyset.authority_of(&task.keypair)?)
    }

    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        let directory = self.root.join(DIRECTORY);
        (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
    }

    /// Returns the kept certificate unless it differs from the wanted one or ends soon.
    fn kept(
        &self,
        certificate: &Path,
        key: &Path,
        spec: &LeafSpec,
        authority: &Authority,
    ) -> Option<(Cert, Key)> {
        let cert = Cert::from_pem(&fs::read_to_string(certificate).ok()?).ok()?;
        let key = Key::from_pem(&fs::read_to_string(key).ok()?).ok()?;
        let info = cert.info().ok()?;
        let (mut have, mut want) = (info.alt_names.clone(), spec.alt_names.clone());
        have.sort();
        want.sort();
        let is_same = info.subject == spec.subject
            && have == want
            && (info.server_auth, info.client_auth) == (spec.usage.server(), spec.usage.client());
        let is_valid = cert.check_key(&key).is_ok()
            && cert.check_signed_by(authority.cert()).is_ok()
            && cert.check_valid_at(self.now).is_ok()
            && cert.check_valid_at(self.now + RENEWAL).is_ok();
        (is_same && is_valid).then_some((cert, key))
    }
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
        let issue = |task: &Certificate, now| {
            Issuer { root: dir.path(), keysets: &keysets, now }.issue(task).unwrap()
        };
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
        assert!(Issuer { root: dir.path(), keysets: &keysets, now }.issue(&unknown).is_err());
    }
}
