//! The configuration files of components: their configuration kinds and kubeconfigs, with the YAML, durations and
//! ignored flags that they share.
//!
//! Read [`decode`] and [`Kubeconfig`] first. Validation and defaults belong to the components; those of kubeadm are in
//! `bootstrap-core`.
//!
//! Invariants:
//! - [`decode`] decodes a kind once and reports every unknown field by its path. Each component treats unknown fields
//!   like its upstream counterpart (see [`Strictness`]).
//! - The output is the same as upstream's: sorted keys, durations in Go's notation, no empty optional fields.

mod admission;
pub mod authentication;
pub mod authorization;
mod command_line;
mod decode;
pub mod egress;
mod error;
mod features;
#[cfg(test)]
mod fuzzed;
mod go_flag;
pub mod known;
pub mod kubeadm;
pub mod kubeconfig;
pub mod kubelet;
mod leader_election;
mod page_flags;
pub mod proxy;
pub mod scheduler;
mod shared;
mod tls;
mod tracing;
pub mod yaml;

pub use admission::admission_plugins;
pub use api_meta::GoDuration;
pub use authentication::AuthenticationConfiguration;
pub use authorization::AuthorizationConfiguration;
pub use command_line::CommandLine;
pub use decode::{Decoded, Strictness, decode, gvk, versioned, without_nulls};
pub use egress::EgressSelectorConfiguration;
pub use error::Error;
pub use features::{Feature, FeatureGateError, FeatureGateFlags, FeatureGates, Stage};
pub use go_flag::GoFlag;
pub use kubeconfig::Kubeconfig;
pub use kubelet::KubeletConfiguration;
pub use leader_election::LeaderElectionFlags;
pub use page_flags::PageFlags;
pub use proxy::KubeProxyConfiguration;
pub use scheduler::KubeSchedulerConfiguration;
pub use shared::{ClientConnection, Logging, Taint};
pub use tls::TlsFlags;
pub use tracing::TracingConfiguration;
