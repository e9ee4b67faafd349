//! Creates and checks the PKI of a plan, keeping existing files. Read [`ensure`] first.

mod authority;
mod leaf;
mod renew;
mod schedule;
mod service_account;

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use api_config::kubeadm::ExternalEtcd;
use bootstrap_core::certs::Plan;

pub use authority::{AuthorityKey, ensure_authority, load_authority};
pub use leaf::ensure_leaf;
pub use renew::{Renewal, renew_kubeconfig, renew_leaf};
pub use schedule::{
    EVERY, KUBECONFIGS, check_interval, client_cert, interval_of, is_due, keep_renewed, renew_due,
    renew_due_with_same_parameters, validity,
};
pub(crate) use schedule::{renew_all_with_same_parameters, renew_kubelet};
pub use service_account::ensure_service_account;

use crate::{Error, FileChange};

/// Creates or checks every certificate and key of `plan` in the certificates directory `dir`.
pub fn ensure(dir: &Path, plan: &Plan, now: SystemTime) -> Result<Vec<FileChange>, Error> {
    let mut touched = each(&plan.authorities, |ca| ensure_authority(dir, *ca, plan, now))?;
    touched.extend(each(&plan.leaves, |leaf| ensure_leaf(dir, leaf, plan, now))?);
    touched.extend(ensure_service_account(dir, plan)?);
    Ok(touched)
}

/// Checks that a joining control plane has the shared files. It issues only leaf certificates: a second authority of
/// the same name would split the cluster.
pub(crate) fn require_shared(
    dir: &Path,
    plan: &Plan,
    etcd: Option<&ExternalEtcd>,
) -> Result<(), Error> {
    let mut files: Vec<_> =
        plan.authorities.iter().map(|ca| dir.join(format!("{}.crt", ca.base()))).collect();
    files.extend(["sa.key", "sa.pub"].map(|name| dir.join(name)));
    let etcd = etcd.map(|e| [&e.ca_file, &e.cert_file, &e.key_file]).into_iter().flatten();
    files.extend(etcd.filter(|path| !path.is_empty()).map(PathBuf::from));
    match files.into_iter().find(|path| !path.exists()) {
        None => Ok(()),
        Some(missing) => Err(Error::NotShared(missing)),
    }
}

/// Runs independent work in parallel, because generating RSA keys takes most of the time.
fn each<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<Vec<FileChange>, Error> + Sync,
) -> Result<Vec<FileChange>, Error> {
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut touched = Vec::new();
    for result in results {
        touched.extend(result?);
    }
    Ok(touched)
}

#[cfg(test)]
pub(crate) mod tests;
