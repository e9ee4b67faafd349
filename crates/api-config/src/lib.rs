//! The configuration that components are started with: their configuration kinds, kubeconfig files, and the
//! YAML, durations and feature gates that these share.
//!
//! Invariants:
//! - A kind is decoded once, through [`decode`], which reports every unknown field by its path; each component
//!   treats such fields as its upstream peer does (see [`Strictness`]).
//! - What is written is what upstream writes: keys sorted, durations in Go's form, empty optional fields left out.

mod admission;
pub mod authentication;
pub mod authorization;
mod decode;
mod error;
#[cfg(test)]
mod fuzzed;
pub mod known;
pub mod kubeadm;
pub mod kubeconfig;
pub mod kubelet;
pub mod proxy;
pub mod scheduler;
mod shared;
pub mod yaml;

pub use admission::admission_plugins;
pub use api_meta::GoDuration;
pub use authentication::AuthenticationConfiguration;
pub use authorization::AuthorizationConfiguration;
pub use decode::{Decoded, Strictness, decode, gvk, versioned, without_nulls};
pub use error::Error;
pub use kubeconfig::Kubeconfig;
pub use kubelet::KubeletConfiguration;
pub use proxy::KubeProxyConfiguration;
pub use scheduler::KubeSchedulerConfiguration;
pub use shared::{ClientConnection, Logging, Taint};
