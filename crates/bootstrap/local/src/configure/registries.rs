//! Writes containerd's files about image registries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use data_encoding::BASE64;

use crate::{cluster::Cluster, error::Error};

impl Cluster {
    /// Returns the directory of the `hosts.toml` files. All nodes share it.
    pub(crate) fn registry_hosts(&self) -> PathBuf {
        self.root.join("etc/containerd/certs.d")
    }
}

/// Writes the `hosts.toml` files of a node, which containerd reads at each pull, and removes those of other registries.
pub(crate) fn write(node: &Cluster) -> Result<(), Error> {
    let (directory, mut hosts) = (node.registry_hosts(), BTreeSet::new());
    fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    for registry in &node.settings.config.registries {
        let path = directory.join(&registry.host).join("hosts.toml");
        pki::update_file(&path, registry.hosts().as_bytes(), pki::PUBLIC_MODE)?;
        hosts.insert(registry.host.as_str());
    }
    for entry in fs::read_dir(&directory).map_err(Error::file("reading", &directory))?.flatten() {
        let path = entry.path();
        let is_gone = entry.file_name().to_str().is_none_or(|name| !hosts.contains(name));
        if is_gone && path.is_dir() {
            fs::remove_dir_all(&path).map_err(Error::file("removing", &path))?;
        }
    }
    Ok(())
}

/// Reads the passwords, and returns containerd's credentials: base64 of `user:password`, by host.
pub(crate) fn encoded_credentials(cluster: &Cluster) -> Result<BTreeMap<String, String>, Error> {
    let mut encoded = BTreeMap::new();
    for registry in &cluster.settings.config.registries {
        let Some(path) = &registry.password_file else { continue };
        let password = fs::read_to_string(path).map_err(Error::file("reading", path))?;
        let pair = format!("{}:{}", registry.username, password.trim_end_matches(['\r', '\n']));
        encoded.insert(registry.host.clone(), BASE64.encode(pair.as_bytes()));
    }
    Ok(encoded)
}
