//! `kubeadm join`: the phases that add a machine to a cluster, as a worker or a control plane. Read [`phases`] first.

mod control_plane;
mod discovery;
mod etcd;
mod kubelet;
mod preflight;
mod request;

use api_config::{Kubeconfig, kubeadm::JoinConfiguration};
use client::Client;

use crate::{
    Error,
    node::Node,
    phase::{Outcome, Phase},
    preflight::Ignored,
};

/// The context of `join`'s phases.
pub struct Ctx {
    /// The configuration of the join.
    pub join: JoinConfiguration,
    /// The machine. Discovery replaces its cluster configuration by the cluster's.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    found: Option<DiscoveredCluster>,
}

/// A discovered cluster.
#[derive(Clone)]
struct DiscoveredCluster {
    /// The kubeconfig with the credentials of discovery, with which the kubelet requests its own.
    kubeconfig: Kubeconfig,
    client: Client,
    ca_pem: String,
}

impl Ctx {
    /// Creates a context before discovery.
    pub fn new(join: JoinConfiguration, node: Node) -> Self {
        Self { join, node, ignored: Ignored::default(), found: None }
    }

    /// Returns `true` if the machine joins as a control plane.
    pub fn is_control_plane(&self) -> bool {
        self.join.control_plane.is_some()
    }

    /// Returns the reason to skip a phase that writes control plane files.
    fn skips_files(&self) -> Option<Outcome> {
        (!self.is_control_plane()).then(|| Outcome::skipped("this machine joins as a worker"))
    }

    /// Returns the reason to skip a phase that accesses the cluster.
    fn skips_cluster(&self) -> Option<Outcome> {
        self.skips_files().or_else(|| self.node.dry_run.then(|| Outcome::skipped("dry run")))
    }

    /// Discovers the cluster and reads its configuration at the first call.
    async fn found(&mut self) -> Result<DiscoveredCluster, Error> {
        if let Some(found) = &self.found {
            return Ok(found.clone());
        }
        let found = discovery::discover(&self.join, self.node.now()).await?;
        discovery::read_configuration(&found.client, &mut self.node).await?;
        Ok(self.found.insert(found).clone())
    }
}

/// Returns all phases, in order. A worker skips those of control planes.
pub fn phases() -> Vec<Phase<Ctx>> {
    let mut phases = vec![preflight::PHASE];
    phases.extend(control_plane::PREPARE);
    phases.extend([etcd::CHECK, kubelet::START, etcd::JOIN, kubelet::WAIT]);
    phases.extend([control_plane::MARK, control_plane::WAIT]);
    phases
}

#[cfg(test)]
mod tests;
