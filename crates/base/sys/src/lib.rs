//! Kernel interfaces outside networking: mounts, cgroups, disks, processes, programs and facts about the machine.
//!
//! Read [`mount::Mounts`] and [`cgroup::Cgroups`] first. Policy, such as which Pod gets which limits, belongs to the
//! callers.
//!
//! Invariants: side effects are behind traits with recording fakes, so that callers can be tested without root. Every
//! operation is idempotent: an existing directory, mount or cgroup is success, because a restarted component repeats
//! its steps.

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

pub use beneath::{OpenPath, hold_beneath, make_beneath, read_beneath};
pub use directory::make_directories;
pub use disk::{DiskUse, disk_use, read_partitions_again};
pub use huge_pages::{HUGE_PAGES, huge_page_unit, huge_pages};
pub use kernel_log::was_killed_for_memory;
pub use pause::{attend, pause};
pub use program::{HostPrograms, ProgramError, ProgramOutput, Programs, RecordedPrograms};
pub use tree::{give_tree, remove_beneath};

/// The error of an operation on a path.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", path.display())]
pub struct Error {
    /// The operation, as a verb phrase before the path.
    pub operation: &'static str,
    /// The path.
    pub path: std::path::PathBuf,
    /// The error from the kernel.
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
