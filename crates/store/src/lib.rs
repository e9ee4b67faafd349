//! The store behind the API server: a small key-value trait with upstream etcd's semantics, and its engines.
//!
//! Keys are upstream's (`/registry/pods/default/web`); values are opaque bytes. Every committed write gets
//! one revision, counted for the whole store (an empty one is at 1); a revision never goes back. Only `apiserver`, offline
//! commands (`store copy`, snapshots) and tests open a store.

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
pub use copy::{Copied, Keyspace, copy};
pub use schedule::Schedule;
pub use snapshot::Snapshot;

/// A store-wide revision. 0 means "no revision": a key that does not exist has mod revision 0.
pub type Revision = u64;

/// One key at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Arc<str>,
    pub value: Bytes,
    pub create_revision: Revision,
    pub mod_revision: Revision,
    /// How many times the key was written since it was created; 1 for a new key.
    pub version: u64,
}

/// The half-open range of keys `[start, end)`; an empty `end` means no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: String,
    pub end: String,
}

/// What a range read answers.
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    pub items: Vec<KeyValue>,
    /// The number of keys in the whole range, without regard to the limit.
    pub count: u64,
    pub more: bool,
    /// The revision the answer is consistent with.
    pub revision: Revision,
}

/// A conditional write of one key. It happens only if the key's mod revision is `expected`
/// (0: the key must not exist).
#[derive(Clone, Debug)]
pub struct Write {
    pub key: Arc<str>,
    pub expected: Expected,
    pub op: Op,
}

/// What must be there for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there or not.
    Any,
    /// The key was written last at this revision; 0 if it does not exist.
    ModRevision(Revision),
}

/// What a write does to its key.
#[derive(Clone, Debug)]
pub enum Op {
    /// `ttl_seconds`: the key is deleted by the store that many seconds after this write.
    Put {
        value: Bytes,
        ttl_seconds: Option<u64>,
    },
    Delete,
}

/// A write's outcome. A conflict is not an error: the caller decides with the current value in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done {
        revision: Revision,
    },
    /// The condition did not hold. `current` is what is there.
    Conflict {
        current: Option<KeyValue>,
    },
}

/// One change, as a watcher sees it. Changes come in revision order, every one exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// For a deletion the value is empty and `mod_revision` is the deletion's revision.
    pub kv: KeyValue,
}

/// Whether the key exists after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Put,
    Delete,
}

/// What a watch delivers.
#[derive(Clone, Debug)]
pub enum WatchMessage {
    /// All changes of one or more consecutive revisions, never part of a revision.
    Changes(Vec<Change>),
    /// Every change up to and including this revision has been delivered.
    Progress(Revision),
}

/// Why the store did not answer. A write's conflict is no error: see [`Outcome`].
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
    /// Nothing was written: encryption at rest is asked for and failed.
    #[error("encrypting the value of {key}: {detail}")]
    Transform { key: Arc<str>, detail: String },
    #[error("{operation} on {path}: {source}")]
    Io { operation: &'static str, path: String, source: std::io::Error },
}

/// What every operation of a store gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A running watch. The channel is bounded by bytes; a consumer that falls behind finds it closed and
/// resumes from the last revision it saw.
pub trait WatchStream: Send {
    /// The next message; `None` when the watch ended (fallen behind, compacted or shut down). A future
    /// that is dropped before it is ready takes no message with it.
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>>;
}

/// What every engine does, and what a layer over one changes. Reads are linearizable: they see every write acknowledged
/// before they began.
pub trait Store: Send + Sync + 'static {
    /// The store that does whatever this one does not do itself. An engine, which does everything, names itself.
    fn below(&self) -> &dyn Store;

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<KeyValue>, Revision)>> {
        self.below().get(key)
    }

    /// At most `limit` keys (0: no limit) in key order, at `revision` (0: now).
    fn range<'a>(
        &'a self,
        range: KeyRange,
        limit: usize,
        revision: Revision,
    ) -> BoxFuture<'a, Result<RangeResult>> {
        self.below().range(range, limit, revision)
    }

    /// Returns after the write is durable.
    fn write<'a>(&'a self, write: Write) -> BoxFuture<'a, Result<Outcome>> {
        self.below().write(write)
    }

    /// Changes to keys in `range` with a revision greater than `after` (0: from now on).
    fn watch<'a>(
        &'a self,
        range: KeyRange,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        self.below().watch(range, after)
    }

    /// The newest committed revision.
    fn revision<'a>(&'a self) -> BoxFuture<'a, Result<Revision>> {
        self.below().revision()
    }

    /// Forgets what was superseded before `revision`; older reads answer [`Error::Compacted`].
    fn compact<'a>(&'a self, revision: Revision) -> BoxFuture<'a, Result<()>> {
        self.below().compact(revision)
    }

    /// The bytes on disk, for the `apiserver_storage_size_bytes` metric.
    fn size_bytes<'a>(&'a self) -> BoxFuture<'a, Result<u64>> {
        self.below().size_bytes()
    }

    /// Asks that every watch soon be sent a [`WatchMessage::Progress`] of at least the newest revision,
    /// unless it has seen that already. Without asking, watches are told about once a second.
    fn request_progress<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        self.below().request_progress()
    }

    /// Whether a key's value should be written anew though nothing in it changes, as it is encrypted with an old key.
    fn is_stale<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.below().is_stale(key)
    }
}

/// What no value of an object begins with.
const UNREADABLE: &[u8] = b"\0unreadable:";

/// Stands in the place of a value that is there and cannot be decrypted, and says why.
pub fn unreadable(why: &str) -> Bytes {
    [UNREADABLE, why.as_bytes()].concat().into()
}

/// Why a value cannot be read, if it is [`unreadable`].
pub fn why_unreadable(value: &[u8]) -> Option<String> {
    value.strip_prefix(UNREADABLE).map(|why| String::from_utf8_lossy(why).into_owned())
}

impl Write {
    /// What counts against the limit of a request.
    pub fn size(&self) -> usize {
        let value = match &self.op {
            Op::Put { value, .. } => value.len(),
            Op::Delete => 0,
        };
        self.key.len() + value
    }
}

impl KeyRange {
    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: &str) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        while let Some(last) = end.pop() {
            if last < 0x7f {
                end.push(last + 1);
                break;
            }
        }
        // Keys are ASCII paths, so that the incremented byte is still valid UTF-8.
        Self { start: prefix.to_owned(), end: String::from_utf8(end).unwrap_or_default() }
    }

    /// Whether the key is in the range.
    pub fn contains(&self, key: &str) -> bool {
        key >= self.start.as_str() && (self.end.is_empty() || key < self.end.as_str())
    }

    /// The range as an ordered map takes it.
    pub fn bounds(&self) -> (Bound<&str>, Bound<&str>) {
        let end =
            if self.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(self.end.as_str()) };
        (Bound::Included(self.start.as_str()), end)
    }
}
