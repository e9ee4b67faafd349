//! The node's part of the Pod network beyond its own bridge: ways to the Pods of other nodes, and NetworkPolicy.
//!
//! Invariants:
//! - The plans are pure ([`net_core::overlay`], [`net_core::policy`]); this crate watches and writes differences.
//! - An unchanged state writes nothing, a restart included, and stopping leaves everything in place.

mod overlay;
mod remove;
mod run;

pub use overlay::{Overlay, OverlayError, mtu};
pub use remove::remove;
pub use run::{Settings, run};

/// The tunnel's interface where the network add-on runs; a cluster of `up` has one of its own name.
pub const ADDON_DEVICE: &str = "wx0";
