//! Creates and checks the kubeconfig files of a plan, keeping existing files. Read [`ensure`] first.

use std::{path::Path, time::SystemTime};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster, User},
};
use bootstrap_core::{
    certs::{Ca, Plan as Pki},
    kubeconfigs::Plan,
};
use pki::{Cert, Validity};

use crate::{
    Error, FileChange,
    certs::{AuthorityKey, load_authority},
};

/// Creates or checks each kubeconfig file of `plans` in `dir`, signed by the CA in `certificates`.
pub fn ensure(
    dir: &Path,
    certificates: &Path,
    plans: &[Plan],
    pki: &Pki,
    now: SystemTime,
) -> Result<Vec<FileChange>, Error> {
    plans.iter().map(|plan| ensure_one(dir, certificates, plan, pki, now)).collect()
}

/// Creates one kubeconfig file, or checks the CA and the validity of an existing one, which is never overwritten.
pub(crate) fn ensure_one(
    dir: &Path,
    certificates: &Path,
    plan: &Plan,
    pki: &Pki,
    now: SystemTime,
) -> Result<FileChange, Error> {
    let path = dir.join(plan.file);
    let ca_key = certificates.join("ca.key");
    let authority = load_authority(certificates, Ca::Kubernetes, now)?
        .ok_or_else(|| Error::NoAuthority { key: ca_key.clone(), phase: Ca::Kubernetes.name() })?;
    let ca_pem: String = authority.bundle.iter().map(Cert::to_pem).collect();
    if path.exists() {
        check(&path, plan, &authority.bundle, now)?;
        return Ok(FileChange::used(path));
    }
    let AuthorityKey::Full(ca) = &authority.key else {
        return Err(Error::ExternalCa { missing: path, key: ca_key });
    };
    make(plan, ca, &ca_pem, pki, now)?.write(&path)?;
    Ok(FileChange::written(path))
}

/// Returns the kubeconfig of `plan` with a new key and client certificate.
pub fn make(
    plan: &Plan,
    ca: &pki::Authority,
    ca_pem: &str,
    pki: &Pki,
    now: SystemTime,
) -> Result<Kubeconfig, Error> {
    let period =
        Validity::starting(now, pki.leaf_validity).until_at_most(ca.cert().info()?.not_after);
    // The validity starts with that of the CA, as in kubeadm, because the certificate is used where it is made.
    let validity =
        Validity { not_before: ca.cert().info()?.not_before.min(period.not_before), ..period };
    let (cert, key) = ca.issue_new(&plan.spec(), pki.algorithm, validity)?;
    Ok(Kubeconfig::single(
        &plan.cluster_name,
        Cluster::with_ca(plan.server.as_str(), ca_pem),
        &plan.user.common_name,
        User::with_cert(&cert.to_pem(), &key.to_pem()?),
    ))
}

fn check(path: &Path, plan: &Plan, bundle: &[Cert], now: SystemTime) -> Result<(), Error> {
    let unusable = |reason: String| Error::Kubeconfig { path: path.into(), reason };
    let config = Kubeconfig::load(path)?;
    let current = config.current().map_err(|e| unusable(e.to_string()))?;
    let trusted =
        current.cluster.ca_pem().map_err(|e| unusable(e.to_string()))?.ok_or_else(|| {
            unusable(
                "its cluster has no certificate-authority: put the cluster's ca.crt there"
                    .to_owned(),
            )
        })?;
    let trusted = Cert::all_from_pem(&trusted).map_err(|e| unusable(format!("its CA: {e}")))?;
    if !bundle.iter().any(|ca| trusted.contains(ca)) {
        return Err(unusable("it does not trust this cluster's CA".to_owned()));
    }
    if current.cluster.server != plan.server {
        // An administrator may have set a load balancer's address, so kubeadm only warns.
        tracing::warn!(
            path = %path.display(), server = %current.cluster.server, expected = %plan.server,
            "the kubeconfig names another server than the configuration; using it unchanged"
        );
    }
    let cert = current.user.cert_pem().map_err(|e| unusable(e.to_string()))?;
    if cert.is_none() && current.user.key_pem().map_err(|e| unusable(e.to_string()))?.is_some() {
        return Err(unusable(format!(
            "it has a key and no client certificate: have the CA sign {}.csr and put the certificate there",
            path.display()
        )));
    }
    if let Some(cert) = cert {
        let cert =
            Cert::from_pem(&cert).map_err(|e| unusable(format!("its client certificate: {e}")))?;
        cert.check_valid_at(now).map_err(|e| unusable(e.to_string()))?;
        if !bundle.iter().any(|ca| cert.check_signed_by(ca).is_ok()) {
            return Err(unusable(
                "its client certificate is not signed by this cluster's CA".to_owned(),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

    use super::*;
    use crate::certs::{
        self,
        tests::{cluster, endpoint},
    };

    #[test]
    fn creates_private_kubeconfigs_once() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let dir = tempfile::tempdir().unwrap();
        let certificates = dir.path().join("pki");
        let pki = Pki::new(&cluster(), &endpoint(), "vm").unwrap();
        certs::ensure(&certificates, &pki, now).unwrap();
        let plans = bootstrap_core::kubeconfigs::plan(&cluster(), &endpoint(), "vm", true);
        let made = ensure(dir.path(), &certificates, &plans, &pki, now).unwrap();
        assert_eq!(made.iter().filter(|t| t.written).count(), 5);
        let ca = pki::read_cert(&certificates.join("ca.crt")).unwrap();
        for plan in &plans {
            let path = dir.path().join(plan.file);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let config = Kubeconfig::load(&path).unwrap();
            let current = config.current().unwrap();
            let cert = Cert::from_pem(&current.user.cert_pem().unwrap().unwrap()).unwrap();
            assert_eq!(cert.info().unwrap().subject, plan.user);
            cert.check_signed_by(&ca).unwrap();
            cert.check_usage(pki::Usage::Client).unwrap();
            assert_eq!(current.cluster.server, "https://10.77.0.1:6443");
            assert_eq!(config.current_context, format!("{}@kubernetes", plan.user.common_name));
        }
        let before = fs::read(dir.path().join("admin.conf")).unwrap();
        let again = ensure(dir.path(), &certificates, &plans, &pki, now).unwrap();
        assert!(again.iter().all(|t| !t.written));
        assert_eq!(fs::read(dir.path().join("admin.conf")).unwrap(), before);
        let late = now + Duration::from_secs(366 * 86_400);
        let error = ensure(dir.path(), &certificates, &plans, &pki, late).unwrap_err().to_string();
        assert!(error.contains("admin.conf") && error.contains("has expired"), "{error}");
        for name in ["ca.crt", "ca.key"] {
            fs::remove_file(certificates.join(name)).unwrap();
        }
        certs::ensure_authority(&certificates, Ca::Kubernetes, &pki, now).unwrap();
        let error = ensure(dir.path(), &certificates, &plans, &pki, now).unwrap_err().to_string();
        assert!(error.contains("it does not trust this cluster's CA"), "{error}");
    }
}
