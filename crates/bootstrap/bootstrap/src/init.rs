//! `kubeadm init`: the phases that set up the first control plane. Read [`phases`] first.

mod addon;
mod bootstrap_token;
mod certs;
mod control_plane;
mod kubeconfig;
mod kubelet;
mod mark_control_plane;
mod preflight;
mod show_join_command;
mod upload_certs;
mod upload_config;
mod wait;

use crate::{node::Node, phase::Phase, preflight::Ignored};

pub use bootstrap_token::{expiration, token_secret};
pub use mark_control_plane::mark;
pub use show_join_command::join_command;
pub use wait::{control_plane_targets, wait_for_control_plane};

/// The context of `init`'s phases.
pub struct Ctx {
    /// The machine and its configuration.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    /// `true` to share the certificates with future control planes.
    pub upload_certs: bool,
    /// `true` to hide the token in the printed join command.
    pub skip_token_print: bool,
    /// `true` to hide the certificate key in the output.
    pub skip_certificate_key_print: bool,
}

impl Ctx {
    /// Creates a context that ignores no check and prints everything.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            ignored: Ignored::default(),
            upload_certs: false,
            skip_token_print: false,
            skip_certificate_key_print: false,
        }
    }
}

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

/// Defines a phase that only reads and writes files.
macro_rules! file_phase {
    ($name:literal, $about:literal, $work:expr) => {
        $crate::phase::Phase {
            name: $name,
            about: $about,
            run: |ctx| {
                let work: fn(
                    &$crate::node::Node,
                ) -> Result<Vec<$crate::FileChange>, $crate::Error> = $work;
                Box::pin(async move { Ok($crate::phase::Outcome::Done(work(&ctx.node)?)) })
            },
        }
    };
}
use file_phase;

#[cfg(test)]
mod tests;
