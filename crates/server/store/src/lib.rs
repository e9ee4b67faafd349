//! The store behind the API server: a key-value trait with etcd's semantics, and the engines that implement it.
//!
//! Keys are upstream's (`/registry/pods/default/web`). Values are opaque bytes: encoding is the API server's task,
//! encryption that of `encryption`. Only `apiserver`, offline commands (`store copy`, snapshots) and tests open a
//! store. Read [`Store`] first, then [`embedded::Embedded`].
//!
//! Invariants: every committed write gets one revision, counted for the whole store. An empty store is at revision 1. A
//! revision never decreases.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;

mod compactor;
mod copy;
pub mod disk;
pub mod embedded;
mod schedule;
mod snapshot;
pub mod tests;

pub use compactor::{COMPACTION_KEY, Compactor};
pub use copy::{CopyReport, Keyspace, copy};
pub use schedule::Schedule;
pub use snapshot::Snapshot;

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

/// A conditional write of one key. The store applies it only if the key's mod revision is `expected` (0: the key does
/// not exist).
#[derive(Clone, Debug)]
pub struct Write {
    /// The key's full path.
    pub key: Arc<str>,
    /// The precondition.
    pub expected: Expected,
    /// The operation.
    pub op: Op,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No precondition.
    Any,
    /// The key's last write has this revision; 0 if it does not exist.
    ModRevision(Revision),
}

/// The operation of a write.
#[derive(Clone, Debug)]
pub enum Op {
    /// Writes a value. With `ttl_seconds`, the store deletes the key that many seconds after this write.
    Put {
        value: Bytes,
        ttl_seconds: Option<u64>,
    },
    Delete,
}

/// The outcome of a write. A conflict is not an error: it carries the current value, and the caller decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done {
        revision: Revision,
    },
    /// The precondition did not hold. `current` is the key's present value, `None` if it does not exist.
    Conflict {
        current: Option<KeyValue>,
    },
}

/// A change, as a watcher receives it. Changes arrive in revision order, each exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The key after the change. A deletion has an empty value, and `mod_revision` is the deletion's revision.
    pub kv: KeyValue,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Put,
    Delete,
}

/// A message of a watch.
#[derive(Clone, Debug)]
pub enum WatchMessage {
    /// All changes of one or more consecutive revisions, never part of a revision.
    Changes(Vec<Change>),
    /// Every change up to and including this revision has been delivered.
    Progress(Revision),
}

/// A failure of the store. A write conflict is not an error: see [`Outcome`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("revision {requested} has been compacted; the oldest that can be read is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision { requested: Revision, current: Revision },
    #[error("the request for {key} is {size} bytes; the store's limit is {limit}")]
    TooLarge { key: Arc<str>, size: usize, limit: usize },
    #[error("the store is out of space: {detail}")]
    NoSpace { detail: String },
    /// The outcome of a write that failed this way is unknown.
    #[error("the store is unavailable during {operation}: {detail}")]
    Unavailable { operation: &'static str, detail: String },
    #[error("the store's data is corrupt in {file} at offset {offset}: {detail}")]
    Corrupt { file: String, offset: u64, detail: String },
    #[error("the store to copy into holds {keys} keys already; name an empty one")]
    NotEmpty { keys: u64 },
    /// The value was not written, because encryption at rest is configured and failed.
    #[error("encrypting the value of {key}: {detail}")]
    Transform { key: Arc<str>, detail: String },
    #[error("{operation} on {path}: {source}")]
    Io { operation: &'static str, path: String, source: std::io::Error },
}

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A running watch. The channel is bounded by bytes. The store closes the watch of a consumer that falls behind; the
/// consumer resumes from the last revision it received.
pub trait WatchStream: Send {
    /// Returns the next message, or `None` when the watch has ended (fallen behind, compacted or shut down). The future
    /// is cancel-safe: dropping it loses no message.
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>>;
}

/// The operations of an engine, or of a layer over one. Reads are linearizable: a read returns every write acknowledged
/// before it began.
pub trait Store: Send + Sync + 'static {
    /// Returns the store that the default methods delegate to. An engine implements every method and returns itself.
    fn below(&self) -> &dyn Store;

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<KeyValue>, Revision)>> {
        self.below().get(key)
    }

    /// Returns at most `limit` keys (0: no limit) in key order, at `revision` (0: the newest).
    fn range<'a>(
        &'a self,
        range: KeyRange,
        limit: usize,
        revision: Revision,
    ) -> BoxFuture<'a, Result<RangeResult>> {
        self.below().range(range, limit, revision)
    }

    /// Applies a write. Returns after it is durable.
    fn write<'a>(&'a self, write: Write) -> BoxFuture<'a, Result<Outcome>> {
        self.below().write(write)
    }

    /// Watches changes to keys in `range` with a revision greater than `after` (0: from now on).
    fn watch<'a>(
        &'a self,
        range: KeyRange,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        self.below().watch(range, after)
    }

    /// Returns the newest committed revision.
    fn revision<'a>(&'a self) -> BoxFuture<'a, Result<Revision>> {
        self.below().revision()
    }

    /// Discards versions superseded before `revision`. Older reads then return [`Error::Compacted`].
    fn compact<'a>(&'a self, revision: Revision) -> BoxFuture<'a, Result<()>> {
        self.below().compact(revision)
    }

    /// Returns the bytes on disk, for the `apiserver_storage_size_bytes` metric.
    fn size_bytes<'a>(&'a self) -> BoxFuture<'a, Result<u64>> {
        self.below().size_bytes()
    }

    /// Requests a [`WatchMessage::Progress`] of at least the newest revision for every watch that has not seen that
    /// revision. Without a request, watches get one about once a second.
    fn request_progress<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        self.below().request_progress()
    }

    /// Reports whether an unchanged value must be rewritten, because it is encrypted with an old key.
    fn is_stale<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.below().is_stale(key)
    }
}

/// The prefix that marks an unreadable value. No encoded object begins with it.
const UNREADABLE: &[u8] = b"\0unreadable:";

/// Returns the placeholder for a value that cannot be decrypted, with the reason.
pub fn unreadable(why: &str) -> Bytes {
    [UNREADABLE, why.as_bytes()].concat().into()
}

/// Returns the reason why a value cannot be read, if it is [`unreadable`].
pub fn why_unreadable(value: &[u8]) -> Option<String> {
    value.strip_prefix(UNREADABLE).map(|why| String::from_utf8_lossy(why).into_owned())
}

impl Write {
    /// Returns the bytes that count against the request limit.
    pub fn size(&self) -> usize {
        let value = match &self.op {
            Op::Put { value, .. } => value.len(),
            Op::Delete => 0,
        };
        self.key.len() + value
    }
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
