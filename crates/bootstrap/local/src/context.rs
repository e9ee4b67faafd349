//! The cluster's context in the user's kubeconfig, as kind does it.

use std::path::{Path, PathBuf};

use api_config::{Kubeconfig, kubeconfig};

use crate::{cluster::Cluster, error::Error};

/// Returns the context's name.
pub(crate) fn name(cluster: &Cluster) -> String {
    match cluster.name.as_str() {
        crate::cluster::DEFAULT_NAME => crate::cluster::DEFAULT_NAME.to_owned(),
        name => format!("windlass-{name}"),
    }
}

/// Returns the kubeconfig to change: the given file, or kubectl's own.
pub(crate) fn path(path: Option<&Path>) -> PathBuf {
    match path {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        None => default_kubeconfig(),
    }
}

/// Returns kubectl's own kubeconfig.
pub fn default_kubeconfig() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    kubeconfig::file_to_change(std::env::var("KUBECONFIG").ok().as_deref(), &home)
}

/// Adds the administrator's context to a kubeconfig, and makes it the current one with `use_it`.
pub(crate) fn merge(cluster: &Cluster, path: &Path, use_it: bool) -> Result<(), Error> {
    let admin = Kubeconfig::load(&cluster.layout().kubeconfig("admin.conf"))?;
    let current = admin.current()?;
    let name = name(cluster);
    let mut entry = Kubeconfig::single(&name, current.cluster.clone(), &name, current.user.clone());
    // As in kind, cluster, user and context have the same name.
    entry.contexts.iter_mut().for_each(|c| c.name.clone_from(&name));
    entry.current_context = if use_it { name } else { String::new() };
    kubeconfig::update_file(path, |config| config.merge(entry))?;
    Ok(())
}

/// Removes the context from a kubeconfig.
pub(crate) fn remove(cluster: &Cluster, path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    kubeconfig::update_file(path, |config| {
        config.remove(&name(cluster));
    })?;
    Ok(())
}
