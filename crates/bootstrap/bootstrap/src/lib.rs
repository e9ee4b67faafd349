//! kubeadm's commands, and the phases that they and `windlass up` run.
//!
//! Read [`phase`] first, then [`init::phases`], [`join::phases`] and [`upgrade::apply_phases`]: each phase is a
//! function of a context around [`node::Node`]. [`cmd`] parses the command lines. The manifests, kubeconfigs and
//! configuration defaults come from `bootstrap-core`, which does no I/O.
//!
//! Invariants: existing files are checked and used, never overwritten. Every phase can run again. An error names the
//! file or object, the cause and the remedy.

pub mod certs;
pub mod cluster;
pub mod cmd;
pub mod containers;
mod error;
pub mod etcd;
pub mod external_ca;
pub mod health;
pub mod host;
pub mod images;
pub mod init;
pub mod join;
pub mod kubeconfigs;
pub mod kubelet;
pub mod manifests;
pub mod node;
pub mod patches;
pub mod phase;
pub mod preflight;
pub mod reset;
pub mod rotate;
pub mod service;
pub mod upgrade;

pub use error::{Error, FlagError, JoinError, RotationError, SnapshotError, UpgradeError};

/// The result of a step for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The path of the file.
    pub path: std::path::PathBuf,
    /// `true` if the file was written; `false` if an existing valid file is used.
    pub written: bool,
}

impl FileChange {
    fn written(path: std::path::PathBuf) -> Self {
        Self { path, written: true }
    }

    fn used(path: std::path::PathBuf) -> Self {
        Self { path, written: false }
    }
}
