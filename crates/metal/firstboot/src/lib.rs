//! The first boot of a machine: Ignition's stages, and the initrd's init process that runs them.
//!
//! Read [`init::run`] for a boot and [`cmd`] for a single stage. The crate `ignition` decides the effect of a config;
//! this crate only carries it out.
//!
//! Invariants: every stage can run again and then changes nothing. No path of a config leads out of the root that is
//! being installed, whatever links it contains. A failed stage reports operation, subject and cause on the console and
//! to the server, if one is configured, and the boot stops.

pub mod cmd;
mod cmdline;
mod context;
mod device;
mod disks;
mod error;
mod fetch;
mod files;
pub mod init;
mod private_file;
mod report;
mod root;
mod stages;

pub use error::Error;
pub use fetch::public_key as tpm_public_key;
