//! kOps' state store, opened by URL: a tree of small objects that several people and machines write.
//!
//! It stores bytes by name, in a directory or an S3 bucket. `kops-core` defines their meaning. Read [`Store`] first.
//!
//! Invariants:
//! - A write names the version it was made from. If the object has changed since, the write fails, and nothing is lost.
//! - A reader sees an object before a write or after it, never in between, even if the writer is killed.
//! - No name leads out of the store, neither by its parts nor through a symbolic link in the store.
//! - Every read is bounded.
//! - The caller passes the current time of a lock.
//! - An S3 server never receives the secret key, and its answers are verified. Only requests that may be executed twice
//!   are retried.

use api_meta::Timestamp;

mod api;
mod body;
mod error;
mod file;
mod lock;
mod name;
mod s3;
mod store;

pub use api::{AccessKey, Api};
pub use error::Error;
pub use lock::Lock;
pub use store::{Environment, Store};

/// The largest object that is read into memory, in bytes. Larger ones, such as backups, are copied between files.
const LARGEST: usize = 16 << 20;
/// The largest number of objects in a listing.
const MOST: usize = 100_000;

/// The version of an object when it was read: its HTTP `ETag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(String);

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object's full name.
    pub name: String,
    /// The length in bytes; zero if the server does not report it.
    pub size: u64,
    /// The time of the last write; the epoch if the server does not report it.
    pub modified: Timestamp,
}

/// The precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The object did not exist.
    Absent,
    /// The object had this version.
    Read(Version),
}

/// The readers of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Everyone who may read the store.
    Open,
    /// Only the owner of the object: private keys.
    Private,
}
