//! Several control planes: `up` creates them as `init` and `join` do, as static Pods with etcd. Every node connects to
//! the API through a balancer of its own, so the API is available while one control plane responds.
//!
//! The administrator's kubeconfig names the balancer of the first node, which is the host.

use std::{fs, path::PathBuf, process::Command, sync::Arc, time::Duration};

use api_config::{
    GoDuration,
    kubeadm::{ClusterConfiguration, LocalEtcd},
};
use bootstrap::{containers::Runtime, host::Host, images::Sources, init, node::Node, phase};
use bootstrap_core::constants::OWN_REPOSITORY;
use instances::link::gateway;
use telemetry::Progress;

use crate::{
    cluster::Cluster,
    containerd::{PAUSE_IMAGE, WINDLASS_IMAGE},
    error::Error,
};

/// The address of each node's balancer.
pub(crate) const ENDPOINT: &str = "127.0.0.1:7445";
/// The ports that only one of several control planes needs: the balancer and etcd.
pub(crate) const PORTS: [(u16, &str); 4] =
    [(7445, "the balancer"), (2379, "etcd"), (2380, "etcd"), (2381, "etcd")];

/// Returns the image tag for the version of etcd that is installed.
pub(crate) fn etcd_tag() -> Result<String, Error> {
    let path = Host::default().program("etcd").ok_or(Error::NoEtcd)?;
    Ok(format!("{}-0", bootstrap::images::etcd_version(&path)?))
}

impl Cluster {
    pub(crate) fn is_replicated(&self) -> bool {
        self.settings.etcd.is_some()
    }

    /// Changes `init`'s configuration for several control planes.
    pub(crate) fn replicate(&self, cluster: &mut ClusterConfiguration, etcd: &str) {
        ENDPOINT.clone_into(&mut cluster.control_plane_endpoint);
        OWN_REPOSITORY.clone_into(&mut cluster.image_repository);
        // The first node connects to its etcd peers from its address on the link, and etcd verifies this address.
        let on_link = self.link_subnet().ok().and_then(|subnet| gateway(subnet).ok());
        cluster.etcd.local = Some(LocalEtcd {
            peer_cert_sans: on_link.iter().map(ToString::to_string).collect(),
            image_tag: etcd.to_owned(),
            data_dir: self.etcd_data().display().to_string(),
            ..LocalEtcd::default()
        });
    }

    /// Returns etcd's data directory, which is the same path on all nodes, because they share one configuration.
    fn etcd_data(&self) -> PathBuf {
        self.home().join("var/lib/etcd")
    }

    fn balancer_servers(&self) -> PathBuf {
        self.root.join("var/lib/balancer/servers")
    }

    /// Returns the command of the node's balancer.
    pub(crate) fn balancer(&self) -> Command {
        let home = bootstrap_core::Layout::under(self.home());
        let mut command = Command::new(self.binary());
        command.arg("balancer").arg("--listen").arg(ENDPOINT);
        command.arg("--servers").arg(self.balancer_servers());
        command.arg("--certificate-authority").arg(home.pki("ca", "crt"));
        command.arg("--kubeconfig").arg(self.layout().kubeconfig("kubelet.conf"));
        command
    }
}

/// Writes the first API server's address for a node's balancer, which learns the others from it.
pub(crate) fn write_first_server(cluster: &Cluster, node: &Cluster) -> Result<(), Error> {
    let path = node.balancer_servers();
    // A balancer that has run knows more addresses.
    if path.exists() {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(&path);
    fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
    let first = format!("{}:{}\n", cluster.settings.address, cluster.settings.api_port);
    fs::write(&path, first).map_err(Error::file("writing", &path))
}

/// Creates a further node's own directory for etcd and the path at which it is mounted inside the node, and returns
/// both.
pub(crate) fn etcd_mount(node: &Cluster) -> Result<(PathBuf, PathBuf), Error> {
    let (own, place) = (node.root.join("var/lib/etcd"), node.etcd_data());
    for directory in [&own, &place] {
        fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
    }
    Ok((own, place))
}

/// Returns the images of a cluster of `init`.
pub(crate) fn images(cluster: &Cluster) -> Result<Vec<oci::Image>, Error> {
    let host = Host::default();
    let sources = Sources { binary: cluster.binary(), ..Sources::of(&host)? };
    let mut names = bootstrap_core::images::all(&cluster.init().cluster);
    names.extend([PAUSE_IMAGE, WINDLASS_IMAGE].map(str::to_owned));
    Ok(names.iter().map(|name| sources.image(name)).collect::<Result<_, _>>()?)
}

/// Removes the static Pods of an earlier start. Their images may be missing, and the kubelet would back off longer and
/// longer.
pub(crate) fn remove_static_pods(cluster: &Cluster) -> Result<(), Error> {
    let directory = cluster.layout().manifests();
    for entry in fs::read_dir(&directory).map_err(Error::file("reading", &directory))?.flatten() {
        let path = entry.path();
        fs::remove_file(&path).map_err(Error::file("removing", &path))?;
    }
    Ok(())
}

/// Starts the first control plane with `init`'s phases, and waits for it. The images must have been imported.
pub(crate) async fn start(
    cluster: &Cluster,
    progress: &Progress,
    patience: Duration,
) -> Result<(), Error> {
    let mut config = cluster.init();
    let patience = GoDuration::from_secs(patience.as_secs().cast_signed());
    config.init.timeouts.get_or_insert_default().control_plane_component_health_check =
        Some(patience);
    let runtime = Runtime::new(&config.init.node_registration.cri_socket, Host::default());
    let clock = Arc::new(rt::SystemClock);
    let node = Node::new(config, cluster.layout(), Host::default(), clock, Arc::new(runtime));
    let mut ctx = init::Ctx::new(node);
    let only = ["etcd", "control-plane"].map(str::to_owned);
    let silent = Progress::silent(progress.recorder().clone());
    phase::run(&init::phases(), &only, &[], &silent, &mut ctx).await?;
    Ok(init::wait_for_control_plane(&ctx.node).await?)
}
