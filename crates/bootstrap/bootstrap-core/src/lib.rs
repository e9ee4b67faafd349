//! Plans for bootstrapping a cluster: kubeadm's PKI, kubeconfigs, kubelet settings, static Pods, tokens, add-ons and
//! configuration kinds.
//!
//! Read [`config::Init`] first: it is the completed configuration, from which the other modules derive files and
//! objects. The crate `bootstrap` writes and applies them.
//!
//! Invariants: nothing here reads a clock, a file or a socket. The same input gives the same plan. Names, defaults and
//! messages are kubeadm's, because users and scripts rely on them.

pub mod addons;
pub mod certs;
pub mod config;
pub mod constants;
pub mod discovery;
pub mod endpoint;
mod error;
pub mod hash;
pub mod images;
pub mod kubeconfigs;
pub mod kubelet;
mod layout;
pub mod manifests;
pub mod net;
pub mod objects;
pub mod tokens;
pub mod units;
pub mod upgrade;

pub use error::{DiscoveryError, Error};
pub use layout::Layout;
