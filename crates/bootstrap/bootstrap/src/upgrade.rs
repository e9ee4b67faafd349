//! `kubeadm upgrade`: the phases of `apply`, which upgrades the first control plane and the cluster's objects, and of
//! `node`, for all other machines; `plan` and `diff` only read. Read [`apply_phases`] and [`node_phases`] first.
//!
//! Invariants: a static Pod is replaced only after its predecessor is in the backup directory, and the next one only
//! after it is ready. If it does not become ready, the earlier manifests return. Every phase can run again, also after
//! the command was killed.

mod addon;
mod cluster_state;
mod context;
mod control_plane;
mod corefile;
mod diff;
mod kubelet;
mod machine;
mod plan;
mod post;
mod preflight;
mod replace;
mod settings;

pub use cluster_state::ClusterState;
pub use context::{CorefileReview, Ctx, Options, ReviewCorefile, Role, WaitForHealth};
pub(crate) use control_plane::explain;
pub use diff::{ManifestDiff, diff};
pub use machine::{Machine, read_machine};
pub use plan::{Component, ConfigVersion, Plan, plan};

use crate::phase::Phase;

/// Returns the phases of `upgrade apply`, in order.
pub fn apply_phases() -> Vec<Phase<Ctx>> {
    let mut phases = vec![preflight::APPLY, control_plane::PHASE];
    phases.extend(settings::UPLOAD);
    phases.extend([kubelet::PHASE, settings::BOOTSTRAP_TOKEN]);
    phases.extend(addon::PHASES);
    phases.push(post::PHASE);
    phases
}

/// Returns the phases of `upgrade node`, in order.
pub fn node_phases() -> Vec<Phase<Ctx>> {
    let mut phases = vec![preflight::NODE, control_plane::PHASE, kubelet::PHASE];
    phases.extend(addon::PHASES);
    phases.push(post::PHASE);
    phases
}
