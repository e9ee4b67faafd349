//! The node's part of the Pod network beyond its own bridge: routes to the Pods of other nodes, and NetworkPolicy.
//!
//! The bridge and the Pods' interfaces belong to the crate `cni`. Read [`run()`] first.
//!
//! Invariants:
//! - The plans are pure ([`net_core::overlay`], [`net_core::policy`]). This crate watches the API and writes
//!   differences.
//! - An unchanged state causes no writes, even after a restart. Stopping leaves everything in place.

mod overlay;
mod remove;
mod run;

pub use overlay::{Overlay, OverlayError, mtu};
pub use remove::remove;
pub use run::{Settings, run};

/// The name of the tunnel device of the network add-on. A cluster of `up` uses another name.
pub const ADDON_DEVICE: &str = "wx0";
