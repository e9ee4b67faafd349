//! Keys with their values and revisions, and ranges of keys.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

/// A store-wide revision. 0 means "no revision": a key that does not exist has mod revision 0.
pub type Revision = u64;

/// A key and its value at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key's full path.
    pub key: Arc<str>,
    /// The stored bytes; empty in a deletion.
    pub value: Bytes,
    /// The revision that created the key.
    pub create_revision: Revision,
    /// The revision of the last write.
    pub mod_revision: Revision,
    /// The number of writes since the key was created; 1 for a new key.
    pub version: u64,
}

/// The half-open range of keys `[start, end)`; an empty `end` means no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: String,
    /// The first key after the range; empty for no upper bound.
    pub end: String,
}

/// The result of a range read.
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    /// The keys in order, at most as many as the limit.
    pub items: Vec<KeyValue>,
    /// The number of keys in the whole range, without regard to the limit.
    pub count: u64,
    /// `true` if the limit cut off further keys.
    pub more: bool,
    /// The revision that the result shows.
    pub revision: Revision,
}

impl KeyRange {
    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix(prefix: &str) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        while let Some(last) = end.pop() {
            if last < 0x7f {
                end.push(last + 1);
                break;
            }
        }
        // Keys are ASCII paths, so the incremented byte is valid UTF-8.
        Self { start: prefix.to_owned(), end: String::from_utf8(end).unwrap_or_default() }
    }

    /// Reports whether the key is in the range.
    pub fn contains(&self, key: &str) -> bool {
        key >= self.start.as_str() && (self.end.is_empty() || key < self.end.as_str())
    }

    /// Returns the range as bounds for an ordered map.
    pub fn bounds(&self) -> (Bound<&str>, Bound<&str>) {
        let end =
            if self.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(self.end.as_str()) };
        (Bound::Included(self.start.as_str()), end)
    }
}
