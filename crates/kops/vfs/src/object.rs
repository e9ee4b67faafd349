//! Objects of a store: their versions, and the conditions of their writes.

use api_meta::Timestamp;
use data_encoding::HEXLOWER;
use md_5::{Digest as _, Md5};

use crate::error::Error;

/// The largest object that is read into memory, in bytes. Larger ones, such as backups, are copied between files.
pub(crate) const LARGEST: usize = 16 << 20;
/// The largest number of objects in a listing.
pub(crate) const MOST: usize = 100_000;

/// The version of an object when it was read: its HTTP `ETag`, or its generation in Google's Cloud Storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub(crate) String);

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object's full name.
    pub name: String,
    /// The length in bytes; zero if the server does not report it.
    pub size: u64,
    /// The time of the last write; the epoch if the server does not report it.
    pub modified: Timestamp,
    /// The tag of the content; empty if the store reports none.
    pub(crate) tag: String,
}

impl ObjectInfo {
    /// Reports whether the object is certain to have this content. S3's tag is the MD5 sum of most objects' content; if
    /// it is not, as with keys of KMS, this is `false`, and only a read tells.
    pub fn has_content(&self, content: &[u8]) -> bool {
        !self.tag.is_empty()
            && self.size == content.len() as u64
            && self.tag.trim_matches('"') == HEXLOWER.encode(&Md5::digest(content))
    }
}

/// The precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The object did not exist.
    Absent,
    /// The object had this version.
    Read(Version),
}

impl Precondition {
    /// Checks the version that an object has, which is `None` if it does not exist.
    pub(crate) fn check(&self, name: &str, present: Option<&Version>) -> Result<(), Error> {
        let expected = match self {
            Self::Absent => None,
            Self::Read(version) => Some(version),
        };
        if present == expected { Ok(()) } else { Err(Error::Conflict { name: name.to_owned() }) }
    }
}

/// The readers of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Everyone who may read the store.
    Open,
    /// Only the owner of the object: private keys.
    Private,
}
