//! The configuration of a node's own containerd.

use instances::runtime;

use crate::{cluster::Cluster, configure, error::Error};

/// The sandbox image: this binary, which runs as PID 1 of every Pod.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// The image of this binary, from which cluster DNS runs under upstream's name.
pub(crate) const WINDLASS_IMAGE: &str = "docker.io/library/windlass:latest";

/// Writes containerd's configuration and returns its path.
pub(crate) fn configure(cluster: &Cluster) -> Result<std::path::PathBuf, Error> {
    let directory = cluster.root.join("etc/containerd");
    std::fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    let path = directory.join("config.toml");
    configure::write_registries(cluster)?;
    // It may contain passwords of registries.
    pki::write_file(&path, text(cluster)?.as_bytes(), pki::KEY_MODE)?;
    Ok(path)
}

fn text(cluster: &Cluster) -> Result<String, Error> {
    Ok(runtime::config(&runtime::Paths {
        root: &cluster.root.join("var/lib/containerd"),
        state: &cluster.run().join("containerd"),
        socket: &cluster.containerd_socket(),
        runc: &cluster.run().join("runc"),
        plugins: &cluster.cni_bin(),
        networks: &cluster.cni_conf(),
        sandbox: PAUSE_IMAGE,
        credentials: &configure::encoded_credentials(cluster)?,
        registry_hosts: Some(&cluster.registry_hosts()),
    }))
}
