//! `kubeadm join`: the phases that add a machine to a cluster, as a worker or a control plane. Read [`phases`] first.

mod context;
mod control_plane;
mod discovery;
mod etcd;
mod kubelet;
mod preflight;
mod request;

pub use context::Ctx;
pub(crate) use discovery::{cluster_configuration, kubelet_configuration};

use crate::phase::Phase;

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
