//! Packs programs as OCI images, offline, and hands them to containerd.
//!
//! Invariants: the same input gives the same bytes (no clock, no owner, sorted keys), so an image packed twice has
//! one digest; the archive is a valid OCI image layout and names its images as containerd's import expects.

mod image;
mod import;
mod program;
mod tar;

pub use image::{Entry, Error, Image, write_archive};
pub use import::{ImportError, import};
pub use program::{ProgramError, plugins, program};
