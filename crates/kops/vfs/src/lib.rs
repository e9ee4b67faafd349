//! kOps' state store, opened by URL: a tree of small objects that several people and machines write.
//!
//! It stores bytes by name, in a directory or a bucket of S3 or of Google's Cloud Storage. `kops-core` defines their
//! meaning. Read [`Store`] first.
//!
//! Invariants:
//! - A write names the version it was made from. If the object has changed since, the write fails, and nothing is lost.
//! - A reader sees an object before a write or after it, never in between, even if the writer is killed.
//! - No name leads out of the store, neither by its parts nor through a symbolic link in the store.
//! - Every read is bounded.
//! - The caller passes the current time of a lock.
//! - A server never receives the secret key, and its answers are verified. Only requests that may be executed twice
//!   are retried.

mod api;
mod body;
mod environment;
mod error;
mod file;
mod lock;
mod name;
mod object;
mod s3;
mod signature;
mod store;

pub use api::{AccessKey, Api};
pub use environment::Environment;
pub use error::Error;
pub use lock::Lock;
pub use object::{ObjectInfo, Precondition, Secrecy, Version};
pub use store::Store;
