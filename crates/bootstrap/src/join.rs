//! `join`: the phases that bring a machine into a cluster, as a worker or a control plane.

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

/// What `join`'s phases work on.
pub struct Ctx {
    pub join: JoinConfiguration,
    /// Its configuration is the cluster's once it has been found.
    pub node: Node,
    pub ignored: Ignored,
    found: Option<Found>,
}

/// The cluster as discovery found it.
#[derive(Clone)]
struct Found {
    /// With the credentials of discovery, for the kubelet to ask for its own.
    kubeconfig: Kubeconfig,
    client: Client,
    ca_pem: String,
}

impl Ctx {
    /// A join of a cluster that is still to be discovered.
    pub fn new(join: JoinConfiguration, node: Node) -> Self {
        Self { join, node, ignored: Ignored::default(), found: None }
    }

    /// Whether the machine becomes a control plane, not a worker alone.
    pub fn is_control_plane(&self) -> bool {
        self.join.control_plane.is_some()
    }

    /// Why a phase that writes files of a control plane has nothing to do here, if it has not.
    fn skips_files(&self) -> Option<Outcome> {
        (!self.is_control_plane()).then(|| Outcome::skipped("this machine joins as a worker"))
    }

    /// The same for a phase that changes or asks what others see.
    fn skips_cluster(&self) -> Option<Outcome> {
        self.skips_files().or_else(|| self.node.dry_run.then(|| Outcome::skipped("dry run")))
    }

    /// Finds the cluster and reads its configuration, once.
    async fn found(&mut self) -> Result<Found, Error> {
        if let Some(found) = &self.found {
            return Ok(found.clone());
        }
        let found = discovery::discover(&self.join, self.node.now()).await?;
        discovery::read_configuration(&found.client, &mut self.node).await?;
        Ok(self.found.insert(found).clone())
    }
}

/// Every phase, in order. A worker has nothing to do in those of control planes.
pub fn phases() -> Vec<Phase<Ctx>> {
    let mut phases = vec![preflight::PHASE];
    phases.extend(control_plane::PREPARE);
    phases.extend([etcd::CHECK, kubelet::START, etcd::JOIN, kubelet::WAIT]);
    phases.extend([control_plane::MARK, control_plane::WAIT]);
    phases
}

#[cfg(test)]
mod tests;
