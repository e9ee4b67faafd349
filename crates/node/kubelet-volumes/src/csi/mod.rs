//! Volumes of CSI drivers. `volume` reads a volume's objects from the API server, `mount` calls the driver to stage and
//! publish, `unmount` reverts that. [`crate::drivers`] tracks the volumes in use in memory, and `files` on the disk.
//!
//! Drivers are called in threads of [`crate::operations`], so that a hanging driver blocks no other Pod.

mod files;
mod mount;
mod stats;
#[cfg(test)]
mod tests;
mod unmount;
mod volume;

pub use files::VOLUMES_IN_POD;
pub use stats::{PublishedVolume, StatsResponse, published_volumes, query_usage};
pub(crate) use unmount::unmount;
pub(crate) use volume::{Inline, prepare};
