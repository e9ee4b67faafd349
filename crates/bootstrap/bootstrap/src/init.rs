//! `kubeadm init`: the phases that set up the first control plane. Read [`phases`] first.

mod addon;
mod bootstrap_token;
mod certs;
mod context;
mod control_plane;
mod kubeconfig;
mod kubelet;
mod mark_control_plane;
mod preflight;
mod show_join_command;
mod upload_certs;
mod upload_config;
mod wait;

use crate::phase::Phase;

pub(crate) use addon::kube_proxy;
pub use bootstrap_token::{expiration, token_secret};
pub use context::Ctx;
pub use mark_control_plane::mark;
pub use show_join_command::join_command;
pub(crate) use upload_config::{upload_kubeadm_config, upload_kubelet_config};
pub use wait::{control_plane_targets, wait_for_control_plane};

/// Returns all phases, in order.
pub fn phases() -> Vec<Phase<Ctx>> {
    let mut phases = vec![preflight::PHASE];
    phases.extend(certs::PHASES);
    phases.extend(kubeconfig::PHASES);
    phases.extend(control_plane::PHASES);
    phases.extend([kubelet::START, wait::PHASE]);
    phases.extend(upload_config::PHASES);
    phases.extend([
        upload_certs::PHASE,
        mark_control_plane::PHASE,
        bootstrap_token::PHASE,
        kubelet::FINALIZE,
    ]);
    phases.extend(addon::PHASES);
    phases.push(show_join_command::PHASE);
    phases
}

#[cfg(test)]
mod tests;
