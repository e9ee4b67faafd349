//! Authorities that are kept elsewhere: what they sign is made there, and must be here before anything is done.

use std::{path::Path, time::SystemTime};

use bootstrap_core::{
    certs::{Ca, Plan},
    kubeconfigs,
};

use super::{Held, ensure_leaf, load_authority};
use crate::{Error, kubeconfigs::ensure_one};

/// The plan's authorities whose keys are not here. Whatever of theirs is missing or does not fit is told at once, since
/// every piece is a way to where the key is.
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
        if loaded.is_some_and(|loaded| matches!(loaded.held, Held::CertOnly)) {
            external.push(*ca);
        }
    }
    // Without the key these only look; nothing is made.
    let leaves = plan.leaves.iter().filter(|leaf| external.contains(&leaf.ca));
    let leaves = leaves.map(|leaf| ensure_leaf(certificates, leaf, plan, now).map(drop));
    let files = kubeconfigs.iter().filter(|_| external.contains(&Ca::Kubernetes));
    let files = files.map(|file| ensure_one(directory, certificates, file, plan, now).map(drop));
    let problems: Vec<String> =
        leaves.chain(files).filter_map(Result::err).map(|e| format!("\t{e}")).collect();
    if problems.is_empty() { Ok(external) } else { Err(Error::External(problems.join("\n"))) }
}
