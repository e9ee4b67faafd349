//! The configuration of a kubelet: its command line, `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1), and the
//! checked [`Settings`] with defaults that all parts of the kubelet read. Read [`Settings`] first.
//!
//! This crate reads files only. It does not read the cluster, and does not apply the settings.
//!
//! Invariants:
//! - A flag's value is merged into the file's object before that is decoded, so flag and field share one parser.
//! - Fields and flags without effect are listed with a reason in `ignored`. Any other setting that cannot act is an
//!   error.

mod args;
mod cloud;
mod configuration;
mod defaults;
mod error;
mod eviction;
mod flags;
mod host;
mod ignored;
mod images;
mod load;
mod placement;
mod rate;
mod reservation;
mod settings;
mod shutdown;
mod static_url;
mod traces;
mod verification;

pub use args::Args;
pub use cloud::CloudSettings;
pub use configuration::KubeletConfiguration;
pub use error::ConfigError;
pub use eviction::EvictionSettings;
pub use host::{KernelSettings, MemoryQos};
pub use images::{CredentialProviderPaths, ImageSettings};
pub use load::{load, parse};
pub use placement::{PlacementSettings, ReservedMemory, Scope};
pub use rate::Rate;
pub use reservation::{Enforcement, ReservedGroup};
pub use settings::{HostSettings, ServerSettings, Settings};
pub use shutdown::ShutdownPeriod;
pub use static_url::StaticUrl;
pub use verification::{Verification, without_tag};
