//! A machine's first boot: Ignition's stages, and the initrd's first process that runs them.
//!
//! Invariants: what a config comes to is decided by the crate `ignition`, and only carried out here; each stage may
//! be run again and finds its work done; no path of a config leads out of the root that is laid out, whatever links
//! that root holds; a stage that fails says what it tried, on what and why, on the console and to the server if it
//! was told one, and the boot stops.

pub mod cmd;
mod disks;
mod error;
mod fetch;
mod files;
pub mod init;
mod report;
mod root;
mod stages;

pub use error::Error;
pub use fetch::public_key as tpm_public_key;
