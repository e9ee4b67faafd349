//! The context of `join`'s phases.

use api_config::kubeadm::JoinConfiguration;

use super::discovery::{self, DiscoveredCluster};
use crate::{Error, node::Node, phase::Outcome, preflight::Ignored};

/// The context of `join`'s phases.
pub struct Ctx {
    /// The configuration of the join.
    pub join: JoinConfiguration,
    /// The machine. Discovery replaces its cluster configuration by the cluster's.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    discovered: Option<DiscoveredCluster>,
}

impl Ctx {
    /// Creates a context before discovery.
    pub fn new(join: JoinConfiguration, node: Node) -> Self {
        Self { join, node, ignored: Ignored::default(), discovered: None }
    }

    /// Returns `true` if the machine joins as a control plane.
    pub fn is_control_plane(&self) -> bool {
        self.join.control_plane.is_some()
    }

    /// Returns the reason to skip a phase that writes control plane files.
    pub(super) fn skips_files(&self) -> Option<Outcome> {
        (!self.is_control_plane()).then(|| Outcome::skipped("this machine joins as a worker"))
    }

    /// Returns the reason to skip a phase that accesses the cluster.
    pub(super) fn skips_cluster(&self) -> Option<Outcome> {
        self.skips_files().or_else(|| self.node.dry_run.then(|| Outcome::skipped("dry run")))
    }

    /// Discovers the cluster and reads its configuration at the first call.
    pub(super) async fn discover(&mut self) -> Result<DiscoveredCluster, Error> {
        if let Some(discovered) = &self.discovered {
            return Ok(discovered.clone());
        }
        let discovered = discovery::discover(&self.join, self.node.now()).await?;
        discovery::read_configuration(&discovered.client, &mut self.node).await?;
        Ok(self.discovered.insert(discovered).clone())
    }
}
