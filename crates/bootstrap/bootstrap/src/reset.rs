//! `kubeadm reset`: reverts the changes of `init` or `join`. Read [`phases`] first.

mod cleanup;
mod context;
mod etcd;

pub use context::{CleanUp, Ctx};

use crate::{
    phase::{Outcome, Phase},
    preflight,
};

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
