//! Further nodes on the same machine: each with namespaces, a container runtime and an agent of its own, below
//! `nodes/` in the cluster's root, where it has the files that the first node has in the root itself.
//!
//! Their processes see neither those of other nodes nor the machine's, and cannot write the binary that all of them run.
//! The first node has the machine's own namespaces, and so is only as apart as the machine is.

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
    Cluster, Error, certs,
    cluster::{Settings, ranges},
    containerd, replicated,
};

impl Cluster {
    /// The root of the cluster that this is a node of.
    pub(crate) fn home(&self) -> &Path {
        self.settings.member_of.as_deref().unwrap_or(&self.root)
    }

    pub(crate) fn is_member(&self) -> bool {
        self.settings.member_of.is_some()
    }

    /// The further nodes, in the order of their addresses.
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
                // One that is just being made.
                Err(Error::NoCluster(_)) => {}
                Err(error) => return Err(error),
            }
        }
        nodes.sort_by_key(|node| node.settings.address);
        Ok(nodes)
    }

    /// The further node with a name.
    pub fn member(&self, name: &str) -> Result<Self, Error> {
        let mut nodes = self.members()?;
        if let Some(found) = nodes.iter().position(|node| node.settings.node_name == name) {
            return Ok(nodes.swap_remove(found));
        }
        if name == self.settings.node_name {
            return Err(Error::Other(format!(
                "node {name} is this machine itself, with its own network; `windlass down` stops it with the cluster"
            )));
        }
        let known: Vec<_> = nodes.iter().map(|node| node.settings.node_name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::Other(format!(
            "there is no node {name}; further nodes of this cluster: {known}"
        )))
    }

    pub(crate) fn link_subnet(&self) -> Result<Cidr, Error> {
        let text = self.settings.link.as_deref().unwrap_or_default();
        text.parse().map_err(|_| {
            Error::Other(format!(
                "the cluster's settings name no range between its nodes ({text:?})"
            ))
        })
    }

    /// There while the node is to stay stopped.
    pub(crate) fn stopped(&self) -> PathBuf {
        self.run().join("stopped")
    }

    /// There while the node is to stay without a network.
    fn cut(&self) -> PathBuf {
        self.run().join("cut")
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut().exists()
    }
}

/// Makes nodes until there are `wanted` with the first; returns all but the first. Nothing of them runs yet.
/// The first `control_planes` of them, the first node included, are control planes.
pub(crate) fn ensure(
    cluster: &mut Cluster,
    wanted: usize,
    control_planes: usize,
) -> Result<Vec<Cluster>, Error> {
    let mut nodes = cluster.members()?;
    for node in &nodes {
        make_directories(node)?;
        certs::share(cluster, node)?;
    }
    let more = control_planes.saturating_sub(1 + count_control_planes(&nodes));
    let wanted = wanted.max(nodes.len() + 1 + more);
    if wanted.saturating_sub(1) > nodes.len() {
        choose_link(cluster)?;
        cluster.save()?;
    }
    while nodes.len() + 1 < wanted {
        let is_control_plane = count_control_planes(&nodes) + 1 < control_planes;
        let node = make(cluster, &nodes, is_control_plane)?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// Chooses the range of the link between the nodes, if that has not been done.
pub(crate) fn choose_link(cluster: &mut Cluster) -> Result<(), Error> {
    if cluster.settings.link.is_none() {
        if cluster.settings.address.is_ipv6() {
            return Err(Error::Other(
                "several nodes need an IPv4 address of this machine; give one with --address"
                    .to_owned(),
            ));
        }
        let mut taken = link::known_ranges()?;
        for text in [&cluster.settings.pod_cidr, &cluster.settings.service_cidr] {
            taken.extend(ranges::<Cidr>(text)?);
        }
        cluster.settings.link = Some(link::choose_subnet(&taken)?.to_string());
    }
    Ok(())
}

fn count_control_planes(nodes: &[Cluster]) -> usize {
    nodes.iter().filter(|node| node.settings.control_plane).count()
}

/// As kind names them: worker, worker2 and so on; the first control plane is the machine.
fn free_name(taken: &BTreeSet<&str>, is_control_plane: bool) -> String {
    let (first, kind) =
        if is_control_plane { (None, "control-plane") } else { (Some("worker"), "worker") };
    let names = first.map(str::to_owned).into_iter().chain((2..).map(|n| format!("{kind}{n}")));
    let mut names = names.filter(|name| !taken.contains(name.as_str()));
    names.next().unwrap_or_default()
}

fn make(cluster: &Cluster, others: &[Cluster], is_control_plane: bool) -> Result<Cluster, Error> {
    let all = || std::iter::once(cluster).chain(others);
    let taken = all().map(|node| node.settings.node_name.as_str()).collect();
    let name = free_name(&taken, is_control_plane);
    let addresses: BTreeSet<IpAddr> = all().map(|node| node.settings.address).collect();
    let settings = Settings {
        node_name: name.clone(),
        address: link::next_address(cluster.link_subnet()?, &addresses)?,
        control_plane: is_control_plane,
        member_of: Some(cluster.root.clone()),
        ..cluster.settings.clone()
    };
    let root = cluster.root.join("nodes").join(&name);
    let node = Cluster { name: cluster.name.clone(), root, settings };
    make_directories(&node)?;
    certs::serving(&node, &certs::plan(&node)?, rt::now())?;
    certs::share(cluster, &node)?;
    containerd::configure(&node)?;
    if cluster.is_replicated() {
        replicated::introduce(cluster, &node)?;
    }
    // Last: a node without settings is none.
    node.save()?;
    Ok(node)
}

/// They are there in every start, since `down` may keep a node and take these away.
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
    fn nodes_are_named_as_kind_names_them() {
        let name = |taken: &[&str], is_control_plane| {
            free_name(&taken.iter().copied().collect(), is_control_plane)
        };
        assert_eq!(name(&["host"], false), "worker");
        assert_eq!(name(&["host", "worker", "worker3"], false), "worker2");
        assert_eq!(name(&["host", "worker"], true), "control-plane2");
    }
}
