//! kOps' state store, by its URL: a tree of small objects that several people and machines write.
//!
//! Invariants:
//! - A write says what it was made from. If the object has changed since, the write fails, and nothing is lost.
//! - A reader sees an object as it was before a write or after it, whatever ends in between.
//! - No name leads out of the store, neither by what it says nor by a link that lies in the store.
//! - What the store holds is read within bounds.
//! - What a lock says of time is an argument.
//! - A server of a store is told no secret key, is believed nothing that it could not know, and is asked again only for what
//!   may be done twice.

use api_meta::Timestamp;

mod api;
mod body;
mod error;
mod file;
mod lock;
mod name;
mod s3;
mod store;

pub use api::{Api, Right};
pub use error::Error;
pub use lock::Lock;
pub use store::{Environment, Store};

/// The largest object that is read into memory, in bytes: backups go from file to file.
const LARGEST: usize = 16 << 20;
/// The most objects that a listing has.
const MOST: usize = 100_000;

/// What an object was when it was read, as HTTP says it (`ETag`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(String);

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its whole name.
    pub name: String,
    /// Its length in bytes; zero if a server does not say.
    pub size: u64,
    /// When it was written last; the epoch if a server does not say.
    pub modified: Timestamp,
}

/// What a write is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// Nothing was there.
    Absent,
    /// This was there.
    Read(Version),
}

/// Who may read an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Whoever may read the store.
    Open,
    /// Whoever owns the object: private keys.
    Private,
}
