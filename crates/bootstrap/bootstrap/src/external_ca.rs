//! Checks the certificates and kubeconfigs that external authorities must provide.

use std::{path::Path, time::SystemTime};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
    kubeconfigs,
};

use crate::{
    Error,
    certs::{AuthorityKey, ensure_leaf, load_authority},
    kubeconfigs::ensure_one,
};

/// Returns `true` if the authority's certificate is present and its key is not.
pub(crate) fn is_external(layout: &Layout, ca: Ca) -> bool {
    layout.pki(ca.base(), "crt").exists() && !layout.pki(ca.base(), "key").exists()
}

/// Returns the plan's authorities whose keys are not on this machine. All missing or invalid files are reported in one
/// error, because each must be fetched from the place of the key.
pub fn check_external(
    directory: &Path,
    certificates: &Path,
    plan: &Plan,
    kubeconfigs: &[kubeconfigs::Plan],
    now: SystemTime,
) -> Result<Vec<Ca>, Error> {
    let mut external = Vec::new();
    for ca in &plan.authorities {
        let loaded = load_authority(certificates, *ca, now)?;
        if loaded.is_some_and(|loaded| matches!(loaded.key, AuthorityKey::CertOnly)) {
            external.push(*ca);
        }
    }
    // Without the key these calls only check.
    let leaves = plan.leaves.iter().filter(|leaf| external.contains(&leaf.ca));
    let leaves = leaves.map(|leaf| ensure_leaf(certificates, leaf, plan, now).map(drop));
    let files = kubeconfigs.iter().filter(|_| external.contains(&Ca::Kubernetes));
    let files = files.map(|file| ensure_one(directory, certificates, file, plan, now).map(drop));
    let problems: Vec<String> =
        leaves.chain(files).filter_map(Result::err).map(|e| format!("\t{e}")).collect();
    if problems.is_empty() { Ok(external) } else { Err(Error::External(problems.join("\n"))) }
}
