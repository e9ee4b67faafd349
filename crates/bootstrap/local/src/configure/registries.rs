//! Writes containerd's files about image registries.

use std::{collections::BTreeMap, fs, path::PathBuf};

use data_encoding::BASE64;

use crate::{cluster::Cluster, error::Error};

impl Cluster {
    /// Returns the directory of the `hosts.toml` files. All nodes share it.
    pub(crate) fn registry_hosts(&self) -> PathBuf {
        self.root.join("etc/containerd/certs.d")
    }
}

/// Writes the `hosts.toml` files of a node, which containerd reads at each pull, and removes others.
pub(crate) fn write(node: &Cluster) -> Result<(), Error> {
    let directory = node.registry_hosts();
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(Error::file("removing", &directory))?;
    }
    fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    for registry in &node.settings.config.registries {
        let own = directory.join(&registry.host);
        fs::create_dir_all(&own).map_err(Error::file("creating", &own))?;
        pki::write_file(&own.join("hosts.toml"), registry.hosts().as_bytes(), pki::PUBLIC_MODE)?;
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
