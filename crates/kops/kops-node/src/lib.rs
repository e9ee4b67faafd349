//! The programs of kOps' machines. [`nodeup`] configures a machine for its group, [`controller`] admits workers,
//! [`channels`] applies the add-ons, [`dns_controller`] publishes names in DNS, [`protokube`] backs up etcd, and
//! [`manager_ctl`] restores a backup.
//!
//! They support machines of cloud local, and nodeup also control planes of cloud metal with systemd (`systemd.rs`).
//! `kops-core` decides; this crate gathers facts and carries the decisions out.
//! It also defines the names that the machines share with the command `kops`. Read [`nodeup`] first.
//!
//! Invariants:
//! - A second run of nodeup with the same configuration changes nothing.
//! - Workers receive no private key but their own.
//! - Data of etcd is never deleted, only moved aside.
//! - A backup is stored only after it was restored to a temporary file.
//! - nodeup may stop between any two writes; the next run continues.

pub mod channels;
pub mod controller;
pub mod dns_controller;
mod download;
mod error;
mod etcd_client;
mod hash;
pub mod manager_ctl;
pub mod nodeup;
mod parameters;
pub mod protokube;
mod status;
mod store_access;
mod systemd;
mod systemd_error;
#[cfg(test)]
mod testing;

pub use download::DownloadError;
pub use error::Error;
pub use etcd_client::etcd_client;
pub use hash::file_hash;
pub use parameters::{API_PORT, CERTIFICATE_PERIOD, ClusterParameters, PROGRAM_ANNOTATION};
pub use status::{check_programs, machine_problem};
pub use store_access::{AUTHORITY_FILE, SETTINGS_FILE, read_settings, variable};
pub use systemd_error::SystemdError;
