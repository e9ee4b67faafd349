//! Packs programs as OCI images without network access, and imports them into containerd. It does not pull or push
//! images. Read [`Image`] first.
//!
//! Invariants: equal input gives equal bytes (no times, no owners, sorted keys), so an image packed twice has one
//! digest. The archive is a valid OCI image layout with the annotations that containerd's import needs.

mod image;
mod import;
mod program;
mod tar;

pub use image::{Entry, Error, Image, write_archive};
pub use import::{ImportError, import};
pub use program::{ProgramError, plugins, program, require_static};
