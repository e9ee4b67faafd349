//! kOps' state store, by its URL: a tree of small objects that several people and machines write.
//!
//! Invariants:
//! - A write says what it was made from. If the object has changed since, the write fails, and nothing is lost.
//! - A reader sees an object as it was before a write or after it, whatever ends in between.
//! - No name leads out of the store, neither by what it says nor by a link that lies in the store.
//! - What the store holds is read within bounds.
//! - Time is an argument.

mod error;
mod file;
mod lock;
mod name;

pub use error::Error;
pub use file::Store;
pub use lock::Lock;

/// What an object's content was when it was read: its SHA-256 sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(Vec<u8>);

impl Version {
    /// The version of this content, by which a later write says what it was made from.
    pub fn of(content: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(content).to_vec())
    }
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
