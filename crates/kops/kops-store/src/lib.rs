//! A cluster's objects in the state store, in upstream's layout: specs, keysets, secrets, SSH keys, channels and etcd's
//! backups.
//!
//! [`vfs`] stores bytes by name. This crate defines the names, and reads and changes the objects. `kops-core` decides
//! their content. Read [`Registry`] first.
//!
//! Invariants:
//! - A write fails if the object has changed since it was read.
//! - A command that changes a cluster's resources holds its lock.
//! - Only objects that kOps wrote are deleted from a cluster's directory.
//! - Private keys and secrets are in the directories `pki/private` and `secrets`, whose objects their owner alone may
//!   read.

mod backups;
mod change;
mod channel;
mod error;
#[cfg(test)]
mod fuzzed;
mod keyset;
mod layout;
mod objects;
mod registry;
mod secrets;
mod ssh_keys;
mod version;

pub use kops_api::yaml::parse as parse_yaml;

pub use backups::{Backups, nanoseconds};
pub use change::{Change, file_changes, key_changes};
pub use channel::read_channel;
pub use error::{Error, RestoreError};
pub use keyset::{Keyset, KeysetChange, SERVICE_ACCOUNT};
pub use layout::{
    BOOTSTRAP_CHANNEL, DOCKER_CONFIG, ENCRYPTION_CONFIG, ETCD, EVENTS, IDENTITY_CA, issued_keyset,
    private_keyset,
};
pub use objects::{ClusterObjects, StoredGroups, StoredObject};
pub use registry::Registry;
pub use secrets::{Secrets, parse_secret};
pub use ssh_keys::SshKey;
pub use version::KOPS_VERSION;
