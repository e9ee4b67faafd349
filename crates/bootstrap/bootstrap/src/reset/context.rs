//! The context of `reset`'s phases.

use api_config::kubeadm::ResetConfiguration;

use crate::{host::Host, node::Node, preflight::Ignored};

/// The context of `reset`'s phases. Each phase continues after errors, because reset must clean up partial setups.
pub struct Ctx {
    /// The configuration of the reset.
    pub reset: ResetConfiguration,
    /// The machine.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    /// Removes kernel state of our components.
    pub clean_up: CleanUp,
    /// The directory of the cluster's snapshots, which are kept. A new cluster can be created from them.
    pub snapshots: Option<String>,
}

/// Removes rules, interfaces and routes that our components left in the kernel. Returns the errors.
pub type CleanUp = fn(&Host) -> Vec<String>;
