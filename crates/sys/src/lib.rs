//! What the kernel is asked for outside networking: mounts, control groups, disks, programs, the machine's own facts.
//!
//! Invariants: everything sits behind a trait with a recording fake, so that what the callers do can be tested without
//! root; every operation may be repeated (an existing directory, mount or group is success), because a restarted
//! component goes over its steps again.

mod beneath;
pub mod cgroup;
mod directory;
mod disk;
mod huge_pages;
pub mod kept;
mod kernel_log;
pub mod liveness;
pub mod mount;
mod pause;
pub mod process;
mod program;
mod tree;

pub use beneath::{Held, hold_beneath, make_beneath, read_beneath};
pub use directory::make_directories;
pub use disk::{DiskUse, disk_use, read_partitions_again};
pub use huge_pages::{HUGE_PAGES, huge_page_unit, huge_pages};
pub use kernel_log::was_killed_for_memory;
pub use pause::{attend, pause};
pub use program::{HostPrograms, ProgramError, ProgramOutput, Programs, RecordedPrograms};
pub use tree::{give_tree, remove_beneath};

/// An operation on a path that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", path.display())]
pub struct Error {
    pub operation: &'static str,
    pub path: std::path::PathBuf,
    pub source: std::io::Error,
}

impl Error {
    pub(crate) fn at(
        operation: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { operation, path, source }
    }
}
