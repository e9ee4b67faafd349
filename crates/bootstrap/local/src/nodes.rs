//! Further nodes on the same host. Each has namespaces, a container runtime and an agent of its own. Its files lie
//! below `nodes/` in the cluster's root, laid out like the first node's in the root itself.
//!
//! Processes of a further node see neither those of other nodes nor the host's, and cannot write the binary that all
//! nodes run. The first node uses the host's namespaces but for its mounts ([`crate::paths`]), and is not isolated from
//! it.

pub(crate) mod cmd;
pub(crate) mod join;
pub(crate) mod link;
pub(crate) mod power;
pub(crate) mod space;

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use net_core::Cidr;

use crate::{
    certs,
    cluster::{Cluster, Settings, ranges},
    containerd,
    error::Error,
    replicated,
};

impl Cluster {
    /// Returns the root of the cluster that this node belongs to.
    pub(crate) fn home(&self) -> &Path {
        self.settings.member_of.as_deref().unwrap_or(&self.root)
    }

    pub(crate) fn is_member(&self) -> bool {
        self.settings.member_of.is_some()
    }

    /// Returns the further nodes, sorted by address.
    pub fn members(&self) -> Result<Vec<Self>, Error> {
        let directory = self.root.join("nodes");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(Error::File { operation: "reading", path: directory, source });
            }
        };
        let mut nodes = Vec::new();
        for entry in entries.flatten() {
            match Self::load(&self.name, &entry.path()) {
                Ok(node) => nodes.push(node),
                // A node that is just being created.
                Err(Error::NoCluster(_)) => {}
                Err(error) => return Err(error),
            }
        }
        nodes.sort_by_key(|node| node.settings.address);
        Ok(nodes)
    }

    /// Returns the further node with a name.
    pub fn member(&self, name: &str) -> Result<Self, Error> {
        let mut nodes = self.members()?;
        if let Some(index) = nodes.iter().position(|node| node.settings.node_name == name) {
            return Ok(nodes.swap_remove(index));
        }
        if name == self.settings.node_name {
            return Err(Error::NodeIsHost(name.to_owned()));
        }
        let names: Vec<_> = nodes.iter().map(|node| node.settings.node_name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::NoNode { name: name.to_owned(), names })
    }

    pub(crate) fn link_subnet(&self) -> Result<Cidr, Error> {
        let text = self.settings.link.as_deref().unwrap_or_default();
        text.parse().map_err(|_| Error::LinkRange(text.to_owned()))
    }

    /// Returns the marker file of a node that must stay stopped.
    pub(crate) fn stopped(&self) -> PathBuf {
        self.run().join("stopped")
    }

    /// Returns the marker file of a node that must stay disconnected.
    fn cut(&self) -> PathBuf {
        self.run().join("cut")
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut().exists()
    }
}

/// Creates nodes until the cluster has `count` nodes, and returns all but the first. `control_planes` of all nodes are
/// control planes. None of the new nodes' processes runs yet.
pub(crate) fn ensure(
    cluster: &mut Cluster,
    count: usize,
    control_planes: usize,
) -> Result<Vec<Cluster>, Error> {
    let mut nodes = cluster.members()?;
    for node in &nodes {
        make_directories(node)?;
        certs::copy_shared_files(cluster, node)?;
    }
    let more = control_planes.saturating_sub(1 + count_control_planes(&nodes));
    let count = count.max(nodes.len() + 1 + more);
    if count.saturating_sub(1) > nodes.len() {
        choose_link(cluster)?;
        cluster.save()?;
    }
    while nodes.len() + 1 < count {
        let is_control_plane = count_control_planes(&nodes) + 1 < control_planes;
        let node = make(cluster, &nodes, is_control_plane)?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// Chooses the range of the link between the nodes, unless it is set.
pub(crate) fn choose_link(cluster: &mut Cluster) -> Result<(), Error> {
    if cluster.settings.link.is_none() {
        if cluster.settings.address.is_ipv6() {
            return Err(Error::NoIpv4);
        }
        let mut used = link::known_ranges()?;
        for text in [&cluster.settings.pod_cidr, &cluster.settings.service_cidr] {
            used.extend(ranges(text)?);
        }
        // The nodes need addresses besides those of a load balancer range in their network.
        let balanced = cluster.settings.config.load_balancer.cidrs()?;
        used.extend(balanced.into_iter().filter(|range| range.prefix <= 24));
        cluster.settings.link = Some(link::choose_subnet(&used)?.to_string());
    }
    Ok(())
}

fn count_control_planes(nodes: &[Cluster]) -> usize {
    nodes.iter().filter(|node| node.settings.control_plane).count()
}

/// Returns a free name in kind's style: worker, worker2 and so on. The host is the first control plane.
fn free_name(used: &BTreeSet<&str>, is_control_plane: bool) -> String {
    let (first, kind) =
        if is_control_plane { (None, "control-plane") } else { (Some("worker"), "worker") };
    let names = first.map(str::to_owned).into_iter().chain((2..).map(|n| format!("{kind}{n}")));
    let mut names = names.filter(|name| !used.contains(name.as_str()));
    names.next().unwrap_or_default()
}

fn make(cluster: &Cluster, others: &[Cluster], is_control_plane: bool) -> Result<Cluster, Error> {
    let all = || std::iter::once(cluster).chain(others);
    let used = all().map(|node| node.settings.node_name.as_str()).collect();
    let name = free_name(&used, is_control_plane);
    let addresses: BTreeSet<IpAddr> = all().map(|node| node.settings.address).collect();
    let own = cluster.settings.config.nodes.get(1 + others.len());
    let settings = Settings {
        node_name: name.clone(),
        address: free_address(cluster, addresses)?,
        control_plane: is_control_plane,
        extra_mounts: own.map(|node| node.extra_mounts.clone()).unwrap_or_default(),
        member_of: Some(cluster.root.clone()),
        ..cluster.settings.clone()
    };
    let root = cluster.root.join("nodes").join(&name);
    let node = Cluster { name: cluster.name.clone(), root, settings };
    make_directories(&node)?;
    certs::ensure_serving_certificate(&node, &certs::plan(&node)?, rt::now())?;
    certs::copy_shared_files(cluster, &node)?;
    containerd::configure(&node)?;
    if cluster.is_replicated() {
        replicated::write_first_server(cluster, &node)?;
    }
    // Written last: a node without settings does not count.
    node.save()?;
    Ok(node)
}

/// Returns a free address on the link that is in no range of load balancer addresses.
fn free_address(cluster: &Cluster, mut taken: BTreeSet<IpAddr>) -> Result<IpAddr, Error> {
    let (subnet, ranges) = (cluster.link_subnet()?, cluster.settings.config.load_balancer.cidrs()?);
    loop {
        let address = link::next_address(subnet, &taken)?;
        if !ranges.iter().any(|range| range.contains(address)) {
            return Ok(address);
        }
        taken.insert(address);
    }
}

/// Creates a node's directories at each start, because `down` may keep the node and remove them.
fn make_directories(node: &Cluster) -> Result<(), Error> {
    let layout = node.layout();
    let directories =
        [node.run(), node.logs(), layout.manifests(), layout.kubelet.join("pki"), node.cni_data()];
    for directory in directories {
        fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_nodes_like_kind() {
        let name = |taken: &[&str], is_control_plane| {
            free_name(&taken.iter().copied().collect(), is_control_plane)
        };
        assert_eq!(name(&["host"], false), "worker");
        assert_eq!(name(&["host", "worker", "worker3"], false), "worker2");
        assert_eq!(name(&["host", "worker"], true), "control-plane2");
    }
}
