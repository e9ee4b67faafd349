//! Bootstrap: kubeadm's commands and the phases that they, and `windlass up`, are made of.
//!
//! Invariants: a file that was given is checked and used, never overwritten; a phase can be run again; an error
//! names the file or object, the cause and the cure.

pub mod certs;
pub mod cluster;
pub mod cmd;
pub mod containers;
mod error;
pub mod etcd;
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

pub use error::Error;

/// What a step did to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    pub path: std::path::PathBuf,
    /// Written anew; a file that was there and good is only used.
    pub written: bool,
}

impl Touched {
    fn written(path: std::path::PathBuf) -> Self {
        Self { path, written: true }
    }

    fn used(path: std::path::PathBuf) -> Self {
        Self { path, written: false }
    }
}
