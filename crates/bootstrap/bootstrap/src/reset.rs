//! `kubeadm reset`: reverts the changes of `init` or `join`. Read [`phases`] first.

mod cleanup;
mod etcd;

use api_config::kubeadm::ResetConfiguration;

use crate::{
    host::Host,
    node::Node,
    phase::{Outcome, Phase},
    preflight,
};

/// The context of `reset`'s phases. Each phase continues after errors, because reset must clean up partial setups.
pub struct Ctx {
    /// The configuration of the reset.
    pub reset: ResetConfiguration,
    /// The machine.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: preflight::Ignored,
    /// Removes kernel state of our components.
    pub clean_up: CleanUp,
    /// The directory of the cluster's snapshots, which are kept. A new cluster can be created from them.
    pub snapshots: Option<String>,
}

/// Removes rules, interfaces and routes that our components left in the kernel. Returns the errors.
pub type CleanUp = fn(&Host) -> Vec<String>;

const PREFLIGHT: Phase<Ctx> = Phase {
    name: crate::phase::PREFLIGHT,
    about: "Check whether this may be done",
    run: |ctx| {
        Box::pin(async {
            preflight::check(preflight::for_reset(), &ctx.ignored)?;
            Ok(Outcome::done())
        })
    },
};

/// Returns all phases, in order.
pub fn phases() -> Vec<Phase<Ctx>> {
    vec![PREFLIGHT, etcd::PHASE, cleanup::PHASE]
}
