//! The objects of the API server that the parts of a kubelet share: its Node, the ConfigMaps, Secrets and Services that
//! Pods refer to, and a recorder of Events. It does not read Pods and does not write statuses; the `kubelet` does.
//! Read [`Objects`] first.
//!
//! Invariants: ConfigMaps and Secrets are read on demand and never cached. Each has a watch of its own while a volume
//! contains it, because a node may not list them. Recording an Event never blocks.

mod events;
mod node;
mod rate;
mod reader;
mod watches;

pub use events::Events;
pub use node::{NodeInformer, NodeObject};
pub use rate::RateLimit;
pub use reader::{Objects, ObjectsError};
pub use watches::VolumeUser;
