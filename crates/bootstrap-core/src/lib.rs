//! What bootstrapping a cluster comes to, as plans: kubeadm's PKI, kubeconfigs, kubelet settings, static Pods,
//! tokens, add-ons and configuration kinds.
//!
//! Invariants: nothing here reads a clock, a file or a socket; the same input gives the same plan. Names, defaults
//! and messages are kubeadm's, as its users and their scripts know them.

pub mod certs;
pub mod constants;
pub mod endpoint;
mod error;
pub mod kubeconfigs;
mod layout;
pub mod net;

pub use error::Error;
pub use layout::Layout;
