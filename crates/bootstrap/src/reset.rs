//! `reset`: takes back what `init` or `join` did to a machine.

mod cleanup;
mod etcd;

use api_config::kubeadm::ResetConfiguration;

use crate::{
    host::Host,
    node::Node,
    phase::{Outcome, Phase},
    preflight,
};

/// What `reset`'s phases work on. Each goes on where something fails: a machine half set up is what it is for.
pub struct Ctx {
    pub reset: ResetConfiguration,
    pub node: Node,
    pub ignored: preflight::Ignored,
    pub clean_up: CleanUp,
    /// Where snapshots of the cluster stay: they outlive it, because a new one can be made from them.
    pub snapshots: Option<String>,
}

/// Takes away what components of ours have left in the kernel: rules, interfaces, routes. Returns what could not be.
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

/// Every phase, in order.
pub fn phases() -> Vec<Phase<Ctx>> {
    vec![PREFLIGHT, etcd::PHASE, cleanup::PHASE]
}
