//! The resources of a node and their allocation to Pods: the plugins of devices and claims, and the CPU, memory, device
//! and topology managers. The allocation itself is in `pod-core`. The kubelet starts the tasks of this crate, and asks
//! for a Pod's allocations. Read [`Placement`] first, then [`Devices`] and [`Claims`].
//!
//! Invariants:
//! - A checkpoint lists an allocation before a container of the Pod starts, and until all of the Pod has ended. So a
//!   CPU, device or claim has one holder even if the kubelet is killed.
//! - Checkpoints are in upstream's format, so that each kubelet can take over the other's node.
//! - A hanging plugin or driver blocks only the Pods that use it, and each for a bounded time.

mod checkpoint;
mod claims;
mod devices;
mod placement;
mod plugins;
mod pod_resources;

pub use claims::{Claims, ClaimsError, ClaimsStateError, follow_claims, slices::remove_slices};
pub use devices::{Devices, DevicesError, allocation::DeviceSettings, server::serve_devices};
pub use placement::{
    Placement,
    error::PlacementError,
    reconcile::reconcile_cpus,
    topology::{Topology, TopologyError},
};
pub use plugins::{PluginWatcher, VolumeLimits};
pub use pod_resources::serve_pod_resources;
