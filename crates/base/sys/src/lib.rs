//! Kernel interfaces outside networking: mounts, cgroups, disks, processes, programs, free memory and facts about the
//! machine.
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
mod error;
mod huge_pages;
mod image;
mod kernel_log;
pub mod liveness;
mod loop_device;
mod memory;
pub mod mount;
mod pause;
pub mod process;
mod program;
pub mod supervision;
mod tree;

pub use beneath::{OpenPath, hold_beneath, make_beneath, read_beneath};
pub use directory::{is_same_file, make_directories};
pub use disk::{DiskUse, disk_use, read_partitions_again};
pub use error::Error;
pub use huge_pages::{HUGE_PAGES, huge_page_unit, huge_pages};
pub use image::{IMAGE_BLOCK, MAKE_EXT4, data_ranges, grow_image};
pub use kernel_log::was_killed_for_memory;
pub use loop_device::{
    AttachedImage, LOOP_MAJOR, LoopError, attach_image, attached_images, detach_images,
    make_block_device, remove_loop_device,
};
pub use memory::return_free_memory;
pub use pause::{attend, pause};
pub use program::{HostPrograms, ProgramError, ProgramOutput, Programs, RecordedPrograms};
pub use tree::{give_tree, remove_beneath};
